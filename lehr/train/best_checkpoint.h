// The best checkpoint of a run, by validation loss, which checkpoint.keep_best keeps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lehr/state/async_checkpointer.h"
#include "lehr/state/checkpoint.h"
#include "lehr/state/coordinator.h"
#include "lehr/train/config.h"

namespace lehr::train {

/// Name of the link to the best checkpoint, in the folder of the checkpoints.
constexpr const char* kBestLink = "best";

/// A checkpoint, and the loss of the validation after its step.
struct BestCheckpoint {
  int64_t step = 0;
  double validation_loss = 0;
};

/// Returns the complete checkpoint with the lowest validation_loss in its trainer.json, of equal ones the earliest;
/// nullopt if none has a loss.
std::optional<BestCheckpoint> best_checkpoint(const state::CheckpointStore& store);

/// Makes the link lead to the best checkpoint, and returns its step. Without one, or unless `keep`, removes the link.
/// There is none on a file system without links, or beside a file or folder of that name. Only one rank may call it.
std::optional<int64_t> link_best(const state::CheckpointStore& store, bool keep);

/// Returns a function that writes a checkpoint of all ranks (state::write_checkpoint), updates the link, and then
/// removes old checkpoints except the best, as CheckpointStore::keep_latest does. `keep_latest` 0: removes none.
state::WriteContents write_and_keep_best(
    state::CheckpointStore store, int64_t keep_latest, std::shared_ptr<state::Coordinator> coordinator);

/// Returns the path and the loss of the best checkpoint of a run, for its log.
std::string describe_best(const TrainConfig& config);

}  // namespace lehr::train
