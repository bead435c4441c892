// Dropout whose masks can be named: by a seed, a step and a token's place in the step's batch.
#pragma once

#include <cstdint>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// The number, in a module's stream of draws, of the first element of a row of the step's batch. Elements of a token
/// follow one another, and tokens do; there is room for any row, so that padding at its end changes no other's draws.
constexpr uint64_t dropout_row(int64_t row) {
  return static_cast<uint64_t>(row) << 40;
}

/// A module that draws dropout masks. They depend on the seed, the step and each row's number in the step's batch, not
/// on how the batch is cut, nor on what was drawn before: a block that is computed again in backward (activation
/// checkpointing) draws the same ones.
class DropoutModule {
 public:
  virtual ~DropoutModule() = default;
  /// Names the masks of the next forward, whose rows begin at `first_row` of the step's batch.
  virtual void set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row) = 0;
};

/// Names the masks of every DropoutModule under (and including) `root`.
void set_dropout_stream(torch::nn::Module& root, uint64_t seed, uint64_t step, int64_t first_row);

}  // namespace lehr::nn
