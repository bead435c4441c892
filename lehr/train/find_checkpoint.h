// Which checkpoint a run goes on from: the newest one whose files are as they were written.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lehr/state/checkpoint.h"
#include "lehr/state/coordinator.h"

namespace lehr::train {

/// What find_checkpoint found.
struct FoundCheckpoint {
  std::optional<std::filesystem::path> folder;
  std::vector<std::string> warnings;  ///< Of checkpoints that were set aside; on the main rank.
};

/// All ranks call it and get the same folder, though only the main one lists them. Without `step` it is the newest
/// complete checkpoint, or nothing where there is none; those that state::find_damage or their headers say are damaged
/// (`contents`: all bytes are read) are renamed step-N.damaged once a whole one is found. Throws a usage error that
/// names the file at fault if none is whole, or that of `step` is not, and one that lists the steps if there is no such
/// step.
FoundCheckpoint find_checkpoint(
    state::CheckpointStore& store, std::optional<int64_t> step, bool contents, state::Coordinator& coordinator);

}  // namespace lehr::train
