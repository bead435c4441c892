// The changes that another system's design makes to the measurement of a stage.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/nn/module.h"
#include "lehr/plan/cost_model.h"
#include "lehr/train/config.h"

namespace lehr::plan {

/// A stage of the model, whose layers are `first_layer` and those that follow it.
struct DesignedStage {
  nn::Model& model;
  int64_t first_layer = 0;
  bool last = false;
};

/// Applies the options of `context.peer` that change FLOPs, bytes and collectives of a stage rather than their times:
/// logit_bytes, gathered_logits, whole_embedding, stops_recompute and context_merge_bytes. Lehr's own design leaves
/// the measurement as it is.
void apply_design(
    StageMeasurement& measured,
    const DesignedStage& stage,
    const train::TrainConfig& config,
    const descriptor::ModelArgs& args,
    const CostContext& context);

}  // namespace lehr::plan
