// Check of a parallel plan on the meta device, after the model has been laid out: nothing is allocated, computed or
// sent.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/model.h"

namespace lehr::shard {

/// Sizes of the forward pass that is checked. Only their divisibility by the plan's degrees matters.
struct PlanInputs {
  int64_t rows = 2;    ///< Sequences of this data rank.
  int64_t tokens = 0;  ///< Tokens per sequence on this cp rank; 0 for a few that divide by the ranks of tp.
  /// What a pipeline stage receives of these sequences, and sends, on meta
  /// (infer_stage_inputs_from_pipeline_inputs of pipeline::ModuleSupportsPipelining); empty for the first stage, or for
  /// the last one.
  std::map<std::string, at::Tensor> received = {};
  std::map<std::string, at::Tensor> sent = {};
};

/// Throws a usage error if the plan of a model on meta is wrong. The error names the module, the operator, and the
/// collective that is missing or superfluous. A plan is wrong if
/// - a parameter has no placement on an axis of more than one rank, or placements in both domains, or a shard that is
///   not this rank's: then some element would not have exactly one owner (norms, checkpoints);
/// - placements are combined such that a summand is lost or counted twice, in forward or in backward (each kind of
///   placement implies the kind of its gradient);
/// - router losses would be computed over a part of a sequence only;
/// - the losses are not distinct along dp_replicate, dp_shard and cp, or not the same along tp.
/// The model is not changed. No communication: any rank may call it alone. Does nothing in a world of one.
void check_plan(const mesh::DistributedContext& context, nn::Model& model, const PlanInputs& inputs = {});

}  // namespace lehr::shard
