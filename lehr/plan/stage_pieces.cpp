#include "lehr/plan/stage_pieces.h"

#include <algorithm>
#include <cmath>

#include "lehr/data/tokenizer.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/plan/experts.h"

namespace lehr::plan {

namespace {
constexpr int64_t kPieces = 3;  // first, middle and last stage

// At least two layers, so that workspace no longer grows; and the middle stage of a model has no dense layers.
int64_t base_of(int64_t dense_layers) {
  return std::max<int64_t>(2, dense_layers);
}

// Sets how peaks grow with a layer. Workspace and unsharded parameters are those of two layers at most.
void set_peaks(StageMeasurement& layer) {
  const int64_t kept = layer.forward.kept, kept_for_wgrad = layer.backward_input.kept;
  layer.forward.peak = layer.backward.peak = layer.last_backward_peak = kept;
  layer.backward_input.peak = std::max(kept, kept_for_wgrad);
  layer.backward_weight.peak = kept_for_wgrad;
  // The first backward of a step frees activations, and allocates gradients.
  layer.only_backward_peak = std::max(kept, layer.gradient_bytes);
  layer.first_backward_peak = std::max(kept, layer.gradient_bytes + layer.whole_gradient_bytes);
  layer.gathered_peak = 0;
}

constexpr auto kActions = {
    &StageMeasurement::forward,
    &StageMeasurement::backward,
    &StageMeasurement::backward_input,
    &StageMeasurement::backward_weight};
constexpr auto kBackwardPeaks = {
    &StageMeasurement::first_backward_peak,
    &StageMeasurement::last_backward_peak,
    &StageMeasurement::only_backward_peak};

// Returns a + factor * b, summed by axes and collective.
std::vector<Communication> add(std::vector<Communication> a, const std::vector<Communication>& b, double factor) {
  for (const Communication& other : b) {
    const auto same = std::find_if(a.begin(), a.end(), [&](const Communication& one) {
      return one.axes == other.axes && one.collective == other.collective;
    });
    Communication& sum = same != a.end() ? *same : a.emplace_back(other);
    if (same == a.end()) {
      sum.bytes = 0;
      sum.calls = 0;
    }
    sum.bytes += std::llround(factor * static_cast<double>(other.bytes));
    sum.calls += std::llround(factor * static_cast<double>(other.calls));
  }
  std::erase_if(a, [](const Communication& one) { return one.calls <= 0; });
  return a;
}

int64_t add(int64_t a, int64_t b, double factor) {
  return std::max<int64_t>(0, a + std::llround(factor * static_cast<double>(b)));
}

ActionMeasurement add(const ActionMeasurement& a, const ActionMeasurement& b, double factor) {
  return {
      .peak = add(a.peak, b.peak, factor),
      .kept = add(a.kept, b.kept, factor),
      .matmul_flops = std::max(0.0, a.matmul_flops + factor * b.matmul_flops),
      .attention_flops = std::max(0.0, a.attention_flops + factor * b.attention_flops),
      .recomputed_flops = std::max(0.0, a.recomputed_flops + factor * b.recomputed_flops),
      .pointwise_bytes = add(a.pointwise_bytes, b.pointwise_bytes, factor),
      .communication = add(a.communication, b.communication, factor)};
}

MatmulWeights add(MatmulWeights a, const MatmulWeights& b, double factor) {
  for (auto weights :
       {&MatmulWeights::active,
        &MatmulWeights::active_experts,
        &MatmulWeights::linear,
        &MatmulWeights::linear_float8,
        &MatmulWeights::active_experts_float8}) {
    a.*weights = std::max(0.0, a.*weights + factor * b.*weights);
  }
  return a;
}

StageMeasurement add(const StageMeasurement& a, const StageMeasurement& b, double factor) {
  return {
      .num_layers = add(a.num_layers, b.num_layers, factor),
      .num_expert_layers = add(a.num_expert_layers, b.num_expert_layers, factor),
      .parameters = add(a.parameters, b.parameters, factor),
      .weights = add(a.weights, b.weights, factor),
      .parameter_bytes = add(a.parameter_bytes, b.parameter_bytes, factor),
      .trained_bytes = add(a.trained_bytes, b.trained_bytes, factor),
      .compute_copy_bytes = add(a.compute_copy_bytes, b.compute_copy_bytes, factor),
      .gradient_bytes = add(a.gradient_bytes, b.gradient_bytes, factor),
      .whole_gradient_bytes = add(a.whole_gradient_bytes, b.whole_gradient_bytes, factor),
      .reductions_end_step = a.reductions_end_step,
      .optimizer_bytes = add(a.optimizer_bytes, b.optimizer_bytes, factor),
      .other_bytes = add(a.other_bytes, b.other_bytes, factor),
      .gathered_peak = add(a.gathered_peak, b.gathered_peak, factor),
      .gathered_after_forward = add(a.gathered_after_forward, b.gathered_after_forward, factor),
      .batch_bytes = std::max(a.batch_bytes, b.batch_bytes),
      .boundary_bytes = a.boundary_bytes,
      .forward = add(a.forward, b.forward, factor),
      .backward = add(a.backward, b.backward, factor),
      .backward_input = add(a.backward_input, b.backward_input, factor),
      .backward_weight = add(a.backward_weight, b.backward_weight, factor),
      .first_backward_peak = add(a.first_backward_peak, b.first_backward_peak, factor),
      .last_backward_peak = add(a.last_backward_peak, b.last_backward_peak, factor),
      .only_backward_peak = add(a.only_backward_peak, b.only_backward_peak, factor),
      .per_step = add(a.per_step, b.per_step, factor)};
}

bool shares_weights(const Communication& one) {
  return one.axes.find(mesh::axis::fsdp) != std::string::npos ||
         one.axes.find(mesh::axis::dp_shard) != std::string::npos ||
         one.axes.find(mesh::axis::ep_shard) != std::string::npos;
}

int64_t scaled(int64_t value, double factor) {
  return std::llround(factor * static_cast<double>(value));
}

void scale_shards(ActionMeasurement& action, double factor) {
  for (Communication& one : action.communication) {
    // The input of an all-gather is a rank's shard; the input of a reduction is the whole tensor.
    if (shares_weights(one) && one.collective == "all_gather") {
      action.pointwise_bytes = std::max<int64_t>(0, action.pointwise_bytes - bytes_of_copies(one));
      one.bytes = scaled(one.bytes, factor);
      one.group_size = scaled(one.group_size, 1 / factor);
      action.pointwise_bytes += bytes_of_copies(one);
    }
  }
}
}  // namespace

int64_t bytes_of_copies(const Communication& gather) {
  return 2 * gather.bytes * (gather.group_size + 1);
}

int64_t leading_dense_layers(const descriptor::ModelArgs& args) {
  const auto blocks = args.block_configs();
  const auto first = std::find_if(blocks.begin(), blocks.end(), [](const auto& one) { return one.is_moe(); });
  return first == blocks.end() ? 0 : first - blocks.begin();
}

StagePieces::StagePieces(const train::TrainConfig& config, const train::TrainSpec& spec) {
  train::TrainConfig small = config;
  auto& p = small.parallelism;
  const int64_t others = p.context_parallel_degree * p.tensor_parallel_degree;
  p.data_parallel_replicate_degree = 1;
  p.data_parallel_shard_degree = 4;  // above 1, so that FSDP collectives of dense and expert parameters are recorded
  while (p.data_parallel_shard_degree * others % (2 * p.expert_parallel_degree) != 0) {
    ++p.data_parallel_shard_degree;
  }
  p.fsdp_reshard_after_forward = shard::ReshardPolicy::all_but_last;
  p.pipeline_parallel_degree = kPieces;
  p.pipeline_parallel_schedule = "1F1B";
  p.pipeline_parallel_schedule_csv.reset();
  p.pipeline_parallel_stages_per_rank = 1;
  p.pipeline_parallel_microbatch_size = -1;
  p.pipeline_parallel_balance = train::PipelineBalance::even;
  p.pipeline_parallel_first_stage_less_layers = 0;
  p.pipeline_parallel_last_stage_less_layers = 0;
  small.training.global_batch_size = small.training.local_batch_size * p.data_parallel_shard_degree * kPieces;
  shard_ranks_ = p.data_parallel_shard_degree * p.context_parallel_degree;
  const auto tokenizer = data::load_tokenizer("byte", "tokenizer.path");
  const auto args_of = [&] { return spec.build.model_args(small, spec.family, *tokenizer); };
  const auto measure = [&](int64_t layers, int64_t stage) {
    small.model.args.num_hidden_layers = layers * kPieces;
    return measure_stage(
        small,
        spec,
        *args_of(),
        {.stage = stage,
         .rank_of_stage = {0, 1, 2},
         .world_size = kPieces * p.data_parallel_shard_degree * others,
         .with_passes = false});
  };
  const int64_t dense = leading_dense_layers(*args_of());
  base_ = base_of(dense);
  base_stages_ = {.first = measure(base_, 0), .middle = measure(base_, 1), .last = measure(base_, 2)};
  const auto model = spec.build.model(small, *args_of(), {.current_stage = 1, .num_stages = kPieces});
  expert_visits_ = plan::expert_visits(*model);
  one_layer_.first = measure(1, 0);
  if (dense < 2) {
    one_layer_.middle = measure(1, 1);
    one_layer_.last = measure(1, 2);
    layer_ = add(base_stages_.middle, one_layer_.middle, -1);
    set_peaks(layer_);
  } else {  // the middle stage would be dense
    layer_ = add(measure(base_ + 1, 1), base_stages_.middle, -1);
    set_peaks(layer_);
    one_layer_.middle = add(base_stages_.middle, layer_, static_cast<double>(1 - base_));
    one_layer_.last = add(base_stages_.last, layer_, static_cast<double>(1 - base_));
  }
}

std::vector<int64_t> StagePieces::measured_layers(const descriptor::ModelArgs& args) {
  const int64_t dense = leading_dense_layers(args), base = base_of(dense);
  std::vector<int64_t> layers{kPieces, kPieces * base};
  if (dense >= 2) {
    layers.push_back(kPieces * (base + 1));
  }
  return layers;
}

// The stage on the measured number of ranks.
StageMeasurement StagePieces::with_layers(const StageShape& shape) const {
  const int64_t measured = shape.layers < base_ ? 1 : base_;
  const Stages& from = measured == base_ ? base_stages_ : one_layer_;
  const auto more = static_cast<double>(shape.layers - measured);
  const StageMeasurement middle = add(from.middle, layer_, more);
  const StageMeasurement last = add(from.last, layer_, more);
  if (!shape.first) {
    return shape.last ? last : middle;
  }
  StageMeasurement first = add(from.first, layer_, more);
  if (more > 0) {
    // Either the layers decide, when all activations are there, or the embeddings, at the begin of forward or the end
    // of backward, when only gradients are. (Of split backwards, tensors for wgrads are there at the end, too.)
    for (auto action : {&StageMeasurement::forward, &StageMeasurement::backward}) {
      (first.*action).peak = std::max((from.first.*action).peak, (middle.*action).peak);
    }
    const int64_t gradients = layer_.gradient_bytes, unreduced = gradients + layer_.whole_gradient_bytes;
    first.first_backward_peak =
        std::max(add(from.first.first_backward_peak, unreduced, more), middle.first_backward_peak);
    first.last_backward_peak = std::max(from.first.last_backward_peak, middle.last_backward_peak);
    first.only_backward_peak = std::max(add(from.first.only_backward_peak, gradients, more), middle.only_backward_peak);
  }
  if (!shape.last) {
    return first;
  }
  // A stage with both ends: the sum of first and last stage, without the layers that it counts twice.
  StageMeasurement whole = add(add(first, last, 1), middle, -1);
  for (auto action : kActions) {
    (whole.*action).peak = std::max((first.*action).peak, (last.*action).peak);
  }
  whole.gathered_peak = std::max(first.gathered_peak, last.gathered_peak);
  for (auto peak : kBackwardPeaks) {
    whole.*peak = std::max(first.*peak, last.*peak);
  }
  whole.boundary_bytes = 0;
  return whole;
}

StageMeasurement StagePieces::stage(const StageShape& shape, int64_t shard_ranks, int64_t replicas) const {
  StageMeasurement stage = with_layers(shape);
  // Bytes of sharded tensors scale with the size of a shard.
  const double shards = static_cast<double>(shard_ranks_) / static_cast<double>(shard_ranks);
  const bool reduces_once = stage.whole_gradient_bytes > 0;
  for (auto peak : {&StageMeasurement::first_backward_peak, &StageMeasurement::only_backward_peak}) {
    const int64_t gradients = std::min(stage.gradient_bytes, stage.*peak);
    if (!reduces_once || peak == &StageMeasurement::only_backward_peak) {
      stage.*peak += scaled(gradients, shards) - gradients;
    }
    // At the begin of backward there are all activations and no gradients yet.
    stage.*peak = std::max(stage.*peak, stage.backward.peak);
  }
  if (reduces_once) {  // unreduced gradients have the same size on any number of ranks
    stage.whole_gradient_bytes += stage.gradient_bytes - scaled(stage.gradient_bytes, shards);
    stage.reductions_end_step = stage.reductions_end_step && replicas == 1;
  }
  for (auto action : kActions) {
    scale_shards(stage.*action, shards);
  }
  for (auto bytes :
       {&StageMeasurement::parameter_bytes,
        &StageMeasurement::trained_bytes,
        &StageMeasurement::compute_copy_bytes,
        &StageMeasurement::gradient_bytes,
        &StageMeasurement::optimizer_bytes}) {
    stage.*bytes = scaled(stage.*bytes, shards);
  }
  std::erase_if(stage.per_step, [](const Communication& one) {
    return !shares_weights(one) || one.collective != "reduce_scatter";
  });
  if (replicas > 1) {
    constexpr int64_t kBucket = 25 << 20;
    stage.per_step.push_back(
        {.axes = mesh::axis::dp_replicate,
         .collective = "all_reduce",
         .group_size = replicas,
         .bytes = stage.gradient_bytes,
         .calls = 1 + stage.gradient_bytes / kBucket});
  }
  return stage;
}

void StagePieces::change_policy(StageMeasurement& stage, shard::ReshardPolicy policy, bool pipelined) {
  if (policy == shard::ReshardPolicy::all_but_last) {
    return;
  }
  const auto is_gather = [](const Communication& one) { return shares_weights(one) && one.collective == "all_gather"; };
  std::vector<Communication> gathers;
  int64_t whole = 0;
  for (const Communication& one : stage.forward.communication) {
    if (is_gather(one)) {
      gathers.push_back(one);
      whole += one.bytes * one.group_size;
    }
  }
  const bool never = policy == shard::ReshardPolicy::never;
  // never: backward needs no all-gathers, and in a pipeline neither does forward (cost_model.cpp adds one per step).
  // always: backward repeats those of forward.
  for (auto action : kActions) {
    ActionMeasurement& measured = stage.*action;
    std::erase_if(measured.communication, [&](const Communication& one) {
      const bool of_forward = action == &StageMeasurement::forward;
      const bool erased = is_gather(one) && (never ? pipelined || !of_forward : !of_forward);
      measured.pointwise_bytes = std::max<int64_t>(0, measured.pointwise_bytes - (erased ? bytes_of_copies(one) : 0));
      return erased;
    });
  }
  if (!never) {
    for (auto action : {&StageMeasurement::backward, &StageMeasurement::backward_input}) {
      for (const Communication& one : gathers) {
        (stage.*action).communication.push_back(one);
        (stage.*action).pointwise_bytes += bytes_of_copies(one);
      }
    }
    stage.gathered_after_forward = 0;
    return;
  }
  const int64_t largest = stage.gathered_peak / 2;  // at the peak two units are unsharded
  const int64_t more = std::max<int64_t>(0, whole + largest - stage.gathered_peak);
  for (auto action : kActions) {
    (stage.*action).peak += more;
  }
  for (auto peak : kBackwardPeaks) {
    stage.*peak += more;
  }
  stage.gathered_peak += more;
  stage.gathered_after_forward = whole;
}

StageMeasurement StagePieces::mean_of(const StageMeasurement& one, const StageMeasurement& other) {
  StageMeasurement half = add(add(one, one, -0.5), other, 0.5);
  half.num_layers = one.num_layers;
  half.num_expert_layers = one.num_expert_layers;
  return half;
}

}  // namespace lehr::plan
