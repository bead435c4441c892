#include "lehr/plan/peer_stage.h"

#include <algorithm>

#include "lehr/train/stage_layout.h"

namespace lehr::plan {

namespace {
using pipeline::ActionKind;

int64_t rounded(double value) {
  return static_cast<int64_t>(value);
}

// Tokens of a micro-batch on one context-parallel rank.
double tokens_of(const train::TrainConfig& config, const CostContext& context) {
  return static_cast<double>(train::microbatch_rows(config) * config.training.seq_len / context.mesh.context_parallel);
}

// Calls action(measurement) for forwards, or for backwards that compute gradients of inputs.
template <class Do>
void each_action(StageMeasurement& stage, bool forward, const Do& action) {
  if (forward) {
    action(stage.forward);
  } else {
    action(stage.backward);
    action(stage.backward_input);
  }
  for (auto& [place, measured] : stage.passes) {
    if (place.kind != ActionKind::backward_weight && (place.kind == ActionKind::forward) == forward) {
      action(measured);
    }
  }
}

// Whole logits are held from the end of the last stage's forward to the start of its backward, with its activations.
void hold_logits(StageMeasurement& last, double logits, const CostContext& context) {
  const auto bytes = rounded(context.peer.logit_bytes * logits);
  // Forward writes the held logits; forward and backward then read them.
  for (const bool forward : {true, false}) {
    each_action(last, forward, [&](ActionMeasurement& action) { action.pointwise_bytes += bytes; });
  }
  const auto with_logits = last.forward.kept + bytes;
  for (ActionMeasurement* action : {&last.forward, &last.backward, &last.backward_input}) {
    action->peak = std::max(action->peak, with_logits);
  }
  for (int64_t* peak : {&last.first_backward_peak, &last.last_backward_peak, &last.only_backward_peak}) {
    *peak = std::max(*peak, with_logits);
  }
}

// A forward ends with an all-gather of each rank's logits, in the compute dtype.
void gather_logits(StageMeasurement& last, double logits, const CostContext& context) {
  const int64_t ranks = context.mesh.tensor_parallel;
  const Communication gather{
      .axes = mesh::axis::tp,
      .collective = "all_gather",
      .group_size = ranks,
      .bytes = rounded(logits * static_cast<double>(c10::elementSize(context.compute)) / static_cast<double>(ranks)),
      .calls = 1};
  each_action(last, /*forward=*/true, [&](ActionMeasurement& action) {
    action.communication.push_back(gather);
    if (action.events.empty()) {
      return;
    }
    // Indices of a pass's own calls come before those of earlier passes, which events only wait for.
    const auto index = static_cast<int64_t>(action.calls.size());
    action.calls.push_back(gather);
    const auto none = ActionEvent::kNone;
    action.events.push_back({.work = {}, .started = index, .waited = none});
    action.events.push_back({.work = {}, .started = none, .waited = index});
  });
}

// The part of the embedding table that other tensor-parallel ranks would hold.
void hold_embedding(StageMeasurement& stage, nn::Model& model, const CostContext& context) {
  double elements = 0, all = 0;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    const auto size = static_cast<double>(c10::multiply_integers(parameter->shape()));
    elements += name.find("embed_tokens") != std::string::npos ? size : 0;
    all += size;
  }
  if (elements == 0 || all == 0) {
    return;
  }
  // Bytes per element at rest are those of the stage's other parameters.
  const double more = elements / all * static_cast<double>(context.mesh.tensor_parallel - 1);
  for (int64_t* bytes :
       {&stage.parameter_bytes,
        &stage.trained_bytes,
        &stage.compute_copy_bytes,
        &stage.gradient_bytes,
        &stage.optimizer_bytes}) {
    *bytes += rounded(more * static_cast<double>(*bytes));
  }
  stage.whole_gradient_bytes += rounded(more * static_cast<double>(stage.whole_gradient_bytes));
}

// The weights of down projections of the dense layers that are recomputed as a whole.
double recomputed_down_projections(const DesignedStage& stage, const train::TrainConfig& config) {
  const auto policy = config.activation_checkpoint.policy();
  if (policy.every == 0 || policy.matmuls_only) {
    return 0;
  }
  double weights = 0;
  int64_t recomputed = 0;
  for (int64_t layer = 0; layer < stage.model.num_local_layers(); ++layer) {
    recomputed += int64_t{policy.applies_to(stage.first_layer + layer)};
  }
  for (const auto& [name, parameter] : nn::named_parameters(stage.model)) {
    if (name.ends_with("mlp.down_proj.weight") && parameter->shape().size() == 2) {
      weights += static_cast<double>(c10::multiply_integers(parameter->shape()));
    }
  }
  return weights * static_cast<double>(recomputed) / static_cast<double>(stage.model.num_local_layers());
}

void stop_recompute(StageMeasurement& measured, double weights, const CostContext& context, double tokens) {
  const double flops = 2 * tokens * weights / static_cast<double>(context.mesh.tensor_parallel);
  each_action(measured, /*forward=*/false, [&](ActionMeasurement& action) {
    const double fewer = std::min(flops, action.recomputed_flops);
    action.matmul_flops -= fewer;
    action.recomputed_flops -= fewer;
  });
}

// A forward's worth of causal attention takes 2 FLOPs per element of the queries and token of the whole sequence.
void merge_pieces(StageMeasurement& stage, const train::TrainConfig& config, const CostContext& context) {
  const double pieces = static_cast<double>(context.mesh.context_parallel);
  const double per_flop =
      context.peer.context_merge_bytes * pieces / (2.0 * static_cast<double>(config.training.seq_len));
  for (const bool forward : {true, false}) {
    each_action(stage, forward, [&](ActionMeasurement& action) {
      action.pointwise_bytes += rounded(per_flop * action.attention_flops);
    });
  }
}
}  // namespace

void apply_design(
    StageMeasurement& measured,
    const DesignedStage& stage,
    const train::TrainConfig& config,
    const descriptor::ModelArgs& args,
    const CostContext& context) {
  const PeerDesign& peer = context.peer;
  const double tokens = tokens_of(config, context);
  const int64_t ranks = context.mesh.tensor_parallel;
  if (stage.last && peer.logit_bytes > 0) {
    const auto whole = tokens * static_cast<double>(args.vocab_size());
    hold_logits(measured, peer.gathered_logits ? whole : whole / static_cast<double>(ranks), context);
    if (peer.gathered_logits && ranks > 1) {
      gather_logits(measured, whole, context);
    }
  }
  if (peer.whole_embedding && ranks > 1) {
    hold_embedding(measured, stage.model, context);
  }
  if (peer.stops_recompute) {
    stop_recompute(measured, recomputed_down_projections(stage, config), context, tokens);
  }
  if (peer.context_merge_bytes > 0 && context.mesh.context_parallel > 1) {
    merge_pieces(measured, config, context);
  }
}

}  // namespace lehr::plan
