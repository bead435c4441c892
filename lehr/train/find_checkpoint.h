// Selection of the checkpoint to resume from: the newest undamaged one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lehr/state/checkpoint.h"
#include "lehr/state/coordinator.h"

namespace lehr::train {

/// The result of find_checkpoint.
struct FoundCheckpoint {
  std::optional<std::filesystem::path> folder;
  bool is_local = false;
  std::vector<std::string> warnings;  ///< About checkpoints that were set aside; on the main rank.
};

/// All ranks must call it; all get the same folder, but only the main rank lists the checkpoints. Without `step`,
/// returns the newest complete checkpoint, which `local` is if it is newer than those of `store`, or nothing if there
/// is none. Checkpoints that are damaged according to state::find_damage or their headers (`contents`: all bytes are
/// read), or whose config.json (of adapters model_config.json) or trainer.json is missing or not JSON, are renamed to
/// step-N.damaged once an undamaged one is found. Throws a usage error that names the damaged file if all are damaged,
/// or if that of `step` is, and one that lists the steps if there is no checkpoint of `step`. A file that cannot be
/// read, such as with too many open files or without permission, is a runtime error, and no checkpoint is renamed.
///
/// If `local` is not whole on every machine, `write_local` writes it to `store`, or returns its damage. A damaged
/// checkpoint of the same step is set aside before.
FoundCheckpoint find_checkpoint(
    state::CheckpointStore& store,
    std::optional<int64_t> step,
    bool contents,
    state::Coordinator& coordinator,
    const std::optional<state::Checkpoint>& local = std::nullopt,
    const std::function<std::optional<std::string>()>& write_local = {});

/// Returns the step of the newest complete checkpoint that the main rank sees in `store`; -1: none. All ranks must call
/// it, with the same `key`.
int64_t newest_step(const state::CheckpointStore& store, const std::string& key, state::Coordinator& coordinator);

}  // namespace lehr::train
