#include "lehr/train/best_checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/state/checkpoint_contents.h"
#include "lehr/train/run_state.h"

namespace lehr::train {

namespace {
namespace fs = std::filesystem;

std::optional<double> validation_loss_of(const fs::path& checkpoint) {
  try {
    return read_run_state(checkpoint).validation_loss;
  } catch (const Error&) {  // damaged: a resume sets it aside
    return std::nullopt;
  }
}
}  // namespace

std::optional<BestCheckpoint> best_checkpoint(const state::CheckpointStore& store) {
  std::optional<BestCheckpoint> best;
  for (const state::Checkpoint& checkpoint : store.list()) {
    const auto loss = validation_loss_of(checkpoint.path);
    if (loss && (!best || *loss < best->validation_loss)) {
      best = {.step = checkpoint.step, .validation_loss = *loss};
    }
  }
  return best;
}

// The link is for people and commands, and the run never reads it, so a failure to write it is no error. A file, a
// folder or a link to somewhere else of that name is the user's, and stays.
std::optional<int64_t> link_best(const state::CheckpointStore& store, bool keep) {
  const fs::path link = store.root() / kBestLink, fresh = store.root() / ".best";
  std::optional<int64_t> best;
  if (const auto found = keep ? best_checkpoint(store) : std::nullopt) {
    best = found->step;
  }
  std::error_code failure, ignored;
  const fs::file_status status = fs::symlink_status(link, ignored);
  const fs::path target = fs::is_symlink(status) ? fs::read_symlink(link, ignored) : fs::path();
  const bool is_own = target.native().starts_with("step-") && !target.has_parent_path();
  if (best && (!fs::exists(status) || is_own)) {
    fs::remove(fresh, ignored);
    fs::create_directory_symlink(store.path_of(*best).filename(), fresh, ignored);
    fs::rename(fresh, link, failure);
  }
  if ((!best || failure) && is_own) {
    fs::remove(link, ignored);
  }
  fs::remove(fresh, ignored);
  return best;
}

state::WriteContents write_and_keep_best(
    state::CheckpointStore store, int64_t keep_latest, std::shared_ptr<state::Coordinator> coordinator) {
  return [store = std::move(store), keep_latest, coordinator = std::move(coordinator)](
             const state::CheckpointContents& contents, const std::string& failure) mutable {
    state::write_checkpoint(store, contents, *coordinator, failure);
    return coordinator->from_main("save tidy", [&] {
      const auto best = link_best(store, /*keep=*/true);
      return keep_latest > 0 ? store.keep_latest(keep_latest, contents.step, best) : std::string();
    });
  };
}

std::string describe_best(const TrainConfig& config) {
  const state::CheckpointStore store(fs::path(config.job.dump_folder) / config.checkpoint.folder);
  try {
    const auto best = best_checkpoint(store);
    return best ? fmt::format("{}, validation_loss {:.4f}", store.path_of(best->step).string(), best->validation_loss)
                : "no checkpoint has a validation loss";
  } catch (const std::exception& error) {  // other ranks go on
    return fmt::format("unknown: {}", error.what());
  }
}

}  // namespace lehr::train
