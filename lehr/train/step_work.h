// The amount of work in a training step, from which its speed and its utilization follow.
#pragma once

#include <cstdint>

#include "lehr/train/task.h"

namespace lehr::train {

/// The work of a batch, or of a step over all ranks.
struct StepWork {
  int64_t valid = 0;            ///< Items with a label (TrainTask::count_valid).
  int64_t tokens = 0;           ///< Positions that hold a token; padding does not count.
  int64_t attention_pairs = 0;  ///< Pairs of a query and a key that it sees, per head: causal, and within documents.
};

/// Counts the work of the sequences in a batch on the host. Padding is where document_ids (B, T) are negative or
/// attention_mask (B, T) is zero. In a batch with neither, each sequence is one document, and padding is where
/// position_ids (B, T) are zero after its first token; without those, input_ids (B, T), or another tensor of two
/// dimensions, has none.
StepWork count_work(const TrainTask& task, const Batch& batch);

/// Returns the positions that count_work counts as tokens, (B, T) bool on the host; undefined if the batch has no
/// padding.
at::Tensor token_mask(const Batch& batch);

}  // namespace lehr::train
