// A parallel plan that is wrong is refused when the model has been laid out: still on meta, nothing allocated, no
// number computed, nothing sent.
#pragma once

#include <cstdint>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/model.h"

namespace lehr::shard {

/// The forward that is checked. Sizes matter only in that they must divide as the plan needs it.
struct PlanInputs {
  int64_t rows = 2;         ///< Of this data rank.
  int64_t tokens = 0;       ///< In this context rank's part of a row; 0 for a few that divide by the ranks of tp.
  int64_t hidden_size = 0;  ///< Of the hidden states that a later stage of a pipeline takes; 0 for the first stage.
};

/// Throws a usage error, which names the module, the operator, and the collective that is missing or too much, if the
/// plan of a model on meta
/// - leaves a parameter without a placement on an axis of more than one rank, or with those of two domains, or with a
///   box that is not this rank's, so that not exactly one rank would answer for each element (norms, checkpoints);
/// - mixes placements in a way that loses or repeats a part of a sum, in forward or, as each kind of placement stands
///   for one of its gradient, in backward;
/// - leaves router losses to what a rank has of a row;
/// - gives losses that are not each rank's own along dp_replicate, dp_shard and cp, and the same along tp.
/// The model is not changed. No communication: any rank may call it alone. Does nothing in a world of one.
void check_plan(const mesh::DistributedContext& context, nn::Model& model, const PlanInputs& inputs = {});

}  // namespace lehr::shard
