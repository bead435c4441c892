#include "lehr/plan/stage_pieces.h"

#include <algorithm>
#include <cmath>

#include "lehr/data/tokenizer.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/plan/experts.h"

namespace lehr::plan {

namespace {
constexpr int64_t kPieces = 3;  // first, middle and last stage
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
      action.pointwise_bytes -= bytes_of_copies(one);
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
  const auto measure = [&](int64_t layers, int64_t stage) {
    small.model.args.num_hidden_layers = layers;
    const auto args = spec.build.model_args(small, spec.family, *tokenizer);
    if (layers == kPieces && stage == 1) {
      const auto model = spec.build.model(small, *args, {.current_stage = stage, .num_stages = kPieces});
      expert_visits_ = plan::expert_visits(*model);
    }
    return measure_stage(
        small,
        spec,
        *args,
        {.stage = stage,
         .rank_of_stage = {0, 1, 2},
         .world_size = kPieces * p.data_parallel_shard_degree * others,
         .with_passes = false});
  };
  first_ = measure(kPieces, 0);
  middle_ = measure(kPieces, 1);
  last_ = measure(kPieces, 2);
  two_ = measure(2 * kPieces, 1);
}

StageMeasurement StagePieces::stage(const StageShape& shape, int64_t shard_ranks, int64_t replicas) const {
  // One layer is the difference of middle stages with two layers and with one.
  const StageMeasurement layer = add(two_, middle_, -1);
  const auto more = static_cast<double>(shape.layers - 1);
  StageMeasurement stage = middle_;
  if (shape.first && shape.last) {
    // A stage with both ends: the sum of first and last stage, minus one layer that it counts twice.
    stage = add(add(first_, last_, 1), middle_, -1);
    for (auto action : kActions) {
      (stage.*action).peak = std::max((first_.*action).peak, (last_.*action).peak);
    }
    stage.gathered_peak = std::max(first_.gathered_peak, last_.gathered_peak);
    for (auto peak : kBackwardPeaks) {
      stage.*peak = std::max(first_.*peak, last_.*peak);
    }
    stage.boundary_bytes = 0;
  } else if (shape.first) {
    stage = first_;
  } else if (shape.last) {
    stage = last_;
  }
  stage = add(stage, layer, more);
  // Bytes of sharded tensors scale with the size of a shard.
  const double shards = static_cast<double>(shard_ranks_) / static_cast<double>(shard_ranks);
  const bool reduces_once = stage.whole_gradient_bytes > 0;
  for (auto peak : {&StageMeasurement::first_backward_peak, &StageMeasurement::only_backward_peak}) {
    const int64_t gradients = std::min(stage.gradient_bytes, stage.*peak);
    if (!reduces_once || peak == &StageMeasurement::only_backward_peak) {
      stage.*peak += scaled(gradients, shards) - gradients;
    }
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
      measured.pointwise_bytes -= erased ? bytes_of_copies(one) : 0;
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
