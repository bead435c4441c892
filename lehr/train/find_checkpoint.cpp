#include "lehr/train/find_checkpoint.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/peft/adapter_names.h"
#include "lehr/state/integrity.h"
#include "lehr/state/weights.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

void require_step(const state::CheckpointStore& store, int64_t step) {
  std::vector<int64_t> steps;
  for (const auto& checkpoint : store.list()) {
    if (checkpoint.step == step) {
      return;
    }
    steps.push_back(checkpoint.step);
  }
  fail(
      "checkpoint.load_step: {} has no complete checkpoint of step {}; it has {}",
      store.root().string(),
      step,
      steps.empty() ? "none" : fmt::format("those of step {}", fmt::join(steps, ", ")));
}
}  // namespace

std::optional<std::string> damage_of_checkpoint(
    const fs::path& folder, bool contents, state::Coordinator& coordinator) {
  if (auto found = state::find_damage(folder, contents, coordinator)) {
    return found;
  }
  const std::string unreadable = coordinator.from_main("find open", [&]() -> std::string {
    const bool adapters = peft::is_adapter_folder(folder);
    try {
      const state::WeightReader weights(folder, adapters ? peft::kAdapterStem : "model");
      const state::WeightReader optimizer(folder, "optimizer");
      // Only their syntax: what they say is compared with the config, and is no damage.
      parse_json_file(path_beneath(folder, adapters ? peft::kModelConfigFile : "config.json"));
      parse_json_file(path_beneath(folder, "trainer.json"));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  });
  return unreadable.empty() ? std::nullopt : std::optional(unreadable);
}

FoundCheckpoint find_checkpoint(
    state::CheckpointStore& store, std::optional<int64_t> step, bool contents, state::Coordinator& coordinator) {
  if (step) {
    coordinator.from_main("find step", [&] {
      require_step(store, *step);
      return std::string();
    });
    const fs::path folder = store.path_of(*step);
    const auto problem = damage_of_checkpoint(folder, contents, coordinator);
    require(!problem, "checkpoint.load_step: {}", problem.value_or(""));
    return {.folder = folder, .warnings = {}};
  }
  // Other ranks may see a different list of folders, now or later, so all use the main rank's.
  std::string listed = coordinator.from_main("find list", [&] {
    std::vector<std::string> steps;
    for (const auto& checkpoint : store.list()) {
      steps.push_back(std::to_string(checkpoint.step));
    }
    return state::pack_texts(steps);
  });
  const std::vector<std::string> steps = state::unpack_texts(listed);
  std::vector<std::pair<int64_t, std::string>> damaged;
  for (size_t i = steps.size(); i-- > 0;) {
    const int64_t candidate = std::stoll(steps[i]);
    const fs::path folder = store.path_of(candidate);
    if (auto problem = damage_of_checkpoint(folder, contents, coordinator)) {
      damaged.emplace_back(candidate, std::move(*problem));
      continue;
    }
    FoundCheckpoint found{.folder = folder, .warnings = {}};
    coordinator.from_main("find set aside", [&] {
      for (const auto& [bad, problem] : damaged) {
        const fs::path aside = store.set_aside(bad, "damaged");
        found.warnings.push_back(fmt::format(
            "{}; that checkpoint is set aside as {}, and the run resumes from step {}",
            problem,
            aside.filename().string(),
            candidate));
      }
      return std::string();
    });
    return found;
  }
  require(
      damaged.empty(),
      "{}: all checkpoints are damaged: {}; restore one, or move them away to start a new run",
      store.root().string(),
      damaged.empty() ? "" : damaged.front().second);
  return {};
}

}  // namespace lehr::train
