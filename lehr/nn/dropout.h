// Dropout with reproducible masks: a mask is a function of a seed, a step and a token's position in the step's batch.
#pragma once

#include <cstdint>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// The index, in a module's random stream, of the first element of a sequence of the step's batch. The elements of a
/// token are consecutive, and so are tokens. Each sequence has a range of its own, so that padding at its end does not
/// change another one's mask.
constexpr uint64_t dropout_row(int64_t row) {
  return static_cast<uint64_t>(row) << 40;
}

/// A module with dropout masks. They depend on the seed, the step and the sequence's index in the step's batch, not on
/// the micro-batch size or on earlier draws: a block that is recomputed in backward (activation checkpointing) draws
/// the same masks.
class DropoutModule {
 public:
  virtual ~DropoutModule() = default;
  /// Selects the masks of the next forward, whose sequences begin at index `first_row` of the step's batch.
  virtual void set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row) = 0;
};

/// Selects the masks of every DropoutModule under (and including) `root`.
void set_dropout_stream(torch::nn::Module& root, uint64_t seed, uint64_t step, int64_t first_row);

}  // namespace lehr::nn
