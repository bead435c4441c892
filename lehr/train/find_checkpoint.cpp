#include "lehr/train/find_checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"
#include "lehr/config/json.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/peft/adapter_names.h"
#include "lehr/state/integrity.h"
#include "lehr/state/weights.h"
#include "lehr/train/run_state.h"

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

// Returns the same answer on all ranks.
std::optional<std::string> damage_of(const fs::path& folder, bool contents, state::Coordinator& coordinator) {
  if (auto found = state::find_damage(folder, contents, coordinator)) {
    return found;
  }
  const std::string unreadable = coordinator.from_main("find open", [&]() -> std::string {
    const bool adapters = peft::is_adapter_folder(folder);
    try {
      const state::WeightReader weights(folder, adapters ? peft::kAdapterStem : "model");
      const state::WeightReader optimizer(folder, "optimizer");
      // Only their syntax: what they say is compared with the config, and is not damage.
      parse_json_file(path_beneath(folder, adapters ? peft::kModelConfigFile : "config.json"));
      parse_json_file(path_beneath(folder, kRunStateFile));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) {
        throw;  // such as a file that cannot be read now
      }
      return error.what();
    }
    return "";
  });
  return unreadable.empty() ? std::nullopt : std::optional(unreadable);
}

struct Candidate {
  int64_t step = 0;
  fs::path folder;
  bool is_local = false;
  std::string damage = {};
};

// The newest last; of one step, the checkpoint on the disk. Other ranks may see a different list of folders, now or
// later, so all use the main rank's.
std::vector<Candidate> candidates_of(
    const state::CheckpointStore& store,
    const std::optional<state::Checkpoint>& local,
    state::Coordinator& coordinator) {
  const std::string listed = coordinator.from_main("find list", [&] {
    std::vector<std::string> steps;
    for (const auto& checkpoint : store.list()) {
      steps.push_back(std::to_string(checkpoint.step));
    }
    return state::pack_texts(steps);
  });
  std::vector<Candidate> candidates;
  for (const std::string& text : state::unpack_texts(listed)) {
    const int64_t step = std::stoll(text);
    candidates.push_back({.step = step, .folder = store.path_of(step)});
  }
  if (local) {
    const auto later = std::find_if(
        candidates.begin(), candidates.end(), [&](const Candidate& other) { return other.step >= local->step; });
    candidates.insert(later, {.step = local->step, .folder = local->path, .is_local = true});
  }
  return candidates;
}

// On the main rank.
std::string set_aside(state::CheckpointStore& store, const Candidate& damaged, int64_t resumes_from) {
  return damaged.is_local ? fmt::format("{}; that local checkpoint is not used", damaged.damage)
                          : fmt::format(
                                "{}; that checkpoint is set aside as {}, and the run resumes from step {}",
                                damaged.damage,
                                store.set_aside(damaged.step, "damaged").filename().string(),
                                resumes_from);
}
}  // namespace

FoundCheckpoint find_checkpoint(
    state::CheckpointStore& store,
    std::optional<int64_t> step,
    bool contents,
    state::Coordinator& coordinator,
    const std::optional<state::Checkpoint>& local,
    const std::function<std::optional<std::string>()>& write_local) {
  if (step) {
    coordinator.from_main("find step", [&] {
      require_step(store, *step);
      return std::string();
    });
    const fs::path folder = store.path_of(*step);
    const auto problem = damage_of(folder, contents, coordinator);
    require(!problem, "checkpoint.load_step: {}", problem.value_or(""));
    return {.folder = folder, .warnings = {}};
  }
  std::vector<Candidate> candidates = candidates_of(store, local, coordinator);
  std::vector<Candidate> damaged;
  std::vector<std::string> warnings;  // on the main rank
  const auto set_aside_damaged = [&](int64_t resumes_from) {
    coordinator.from_main("find set aside", [&] {
      for (const Candidate& bad : damaged) {
        warnings.push_back(set_aside(store, bad, resumes_from));
      }
      return std::string();
    });
    damaged.clear();
  };
  for (; !candidates.empty(); candidates.pop_back()) {
    Candidate& candidate = candidates.back();
    const bool to_write = candidate.is_local && write_local;
    if (to_write && !damaged.empty() && damaged.back().step == candidate.step) {
      set_aside_damaged(candidate.step);
    }
    if (auto problem = to_write ? write_local() : damage_of(candidate.folder, contents, coordinator)) {
      candidate.damage = std::move(*problem);
      damaged.push_back(std::move(candidate));
      continue;
    }
    set_aside_damaged(candidate.step);
    return {.folder = candidate.folder, .is_local = candidate.is_local && !to_write, .warnings = std::move(warnings)};
  }
  require(
      damaged.empty(),
      "{}: all checkpoints are damaged: {}; restore one, or move them away to start a new run",
      store.root().string(),
      damaged.empty() ? "" : damaged.front().damage);
  return {};
}

int64_t newest_step(const state::CheckpointStore& store, const std::string& key, state::Coordinator& coordinator) {
  return std::stoll(coordinator.from_main(key, [&] {
    const auto latest = store.latest();
    return std::to_string(latest ? latest->step : -1);
  }));
}

}  // namespace lehr::train
