#include "lehr/plan/measure_stage.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/mesh/fake_transport.h"
#include "lehr/meter/memory_meter.h"
#include "lehr/meter/on_meta.h"
#include "lehr/nn/float8.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/module.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/named_modules.h"
#include "lehr/plan/measure_pass.h"
#include "lehr/plan/stage_run.h"
#include "lehr/shard/whole_tensors.h"
#include "lehr/train/step.h"

namespace lehr::plan {

namespace {
using pipeline::ActionKind;

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

// Returns the collectives of a step's last micro-batch that other micro-batches do not have.
std::vector<Communication> without(std::vector<Communication> all, const std::vector<Communication>& usual) {
  for (Communication& one : all) {
    for (const Communication& other : usual) {
      if (one.axes == other.axes && one.collective == other.collective) {
        one.bytes -= other.bytes;
        one.calls -= other.calls;
      }
    }
  }
  std::erase_if(all, [](const Communication& one) { return one.calls == 0; });
  return all;
}

double size_of(const nn::ParameterPtr& weight) {
  return static_cast<double>(c10::multiply_integers(weight->shape()));
}

// Adds the weights of linear layers, and those in float8 or, without float8.enable (`float8`), those that can be.
void count_linear(MatmulWeights& weights, nn::Model& model, bool float8) {
  const nn::Float8Layers layers = nn::float8_layers(model);
  const std::set<std::string> fit(layers.fit.begin(), layers.fit.end());
  std::vector<std::pair<std::string, double>> moe;  // names of MoE layers, and the fraction of experts that is active
  for (const auto& [name, module] : nn::named_modules(model)) {
    const auto within = std::find_if(
        moe.begin(), moe.end(), [&name = name](const auto& layer) { return name.starts_with(layer.first + "."); });
    if (const auto* moe_layer = dynamic_cast<const nn::MoELayerImpl*>(module)) {
      moe.emplace_back(
          name, static_cast<double>(moe_layer->router->top_k()) / static_cast<double>(moe_layer->num_experts()));
    } else if (const auto* layer = dynamic_cast<const nn::LinearImpl*>(module)) {
      const double size = size_of(layer->tied() ? layer->tied() : layer->own_parameter("weight"));
      if (within != moe.end()) {
        weights.active_experts_float8 += layer->float8() ? size : 0;
        continue;
      }
      weights.linear += size;
      weights.linear_float8 += (float8 ? layer->float8().has_value() : fit.contains(name)) ? size : 0;
    } else if (const auto* experts = dynamic_cast<const nn::GroupedLinearImpl*>(module)) {
      const double active = within != moe.end() ? within->second : 1;
      weights.active_experts_float8 += experts->float8() ? active * size_of(experts->own_parameter("weight")) : 0;
    }
  }
}

// `float8` is float8.enable.
MatmulWeights weights_of(nn::Model& model, bool float8) {
  MatmulWeights weights{.active = static_cast<double>(nn::count_parameters(model))};
  for (const nn::MoELayerImpl* moe_layer : nn::moe_layers(model)) {
    const auto idle = static_cast<double>(moe_layer->num_idle_parameters());
    weights.active_experts += static_cast<double>(nn::count_parameters(*moe_layer)) - idle;
    weights.active -= idle;
  }
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    weights.active -= name.find("embed_tokens") != std::string::npos ? size_of(parameter) : 0;
  }
  count_linear(weights, model, float8);
  return weights;
}

void measure_parameters(const train::TrainConfig& config, StageRun& run, StageMeasurement& result) {
  result.weights = weights_of(run.model(), config.float8.enable);
  result.num_layers = run.model().num_local_layers();
  result.num_expert_layers = static_cast<int64_t>(nn::moe_layers(run.model()).size());
  result.parameters = nn::count_parameters(run.model());
  for (const auto& list : {nn::named_parameters(run.model()), nn::named_copies(run.model())}) {
    for (const auto& [name, parameter] : list) {
      const at::Tensor& value = parameter->value();
      result.parameter_bytes += bytes_of(value);
      result.trained_bytes += parameter->trainable() ? bytes_of(value) : 0;
      if (run.sharded() == nullptr && !parameter->shown().is_same(value)) {
        result.compute_copy_bytes += bytes_of(parameter->shown());
      }
    }
  }
}

int64_t gradient_bytes(StageRun& run) {
  int64_t bytes = 0;
  for (const auto& list : {nn::named_parameters(run.model()), nn::named_copies(run.model())}) {
    for (const auto& [name, parameter] : list) {
      bytes += bytes_of(parameter->value().grad());
    }
  }
  return bytes;
}

int64_t batch_bytes(const train::Batch& batch) {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : batch) {
    bytes += bytes_of(tensor);
  }
  return bytes;
}

// Runs three steps. The first one allocates gradients and lets FSDP units record their order; the second one has a
// single micro-batch; the third one has four.
void measure_actions(StageRun& run, Measuring& measuring, Passes& passes, StageMeasurement& result) {
  using enum ActionKind;
  passes.begin_step(1);
  passes.run(forward);
  passes.run(backward_full);
  result.passes.clear();
  const int64_t steps_end = measuring.live();
  result.gradient_bytes = gradient_bytes(run);
  result.batch_bytes = batch_bytes(run.batch());
  result.other_bytes =
      steps_end - result.batch_bytes - result.parameter_bytes - result.compute_copy_bytes - result.gradient_bytes;
  result.boundary_bytes = run.boundary_bytes();
  const int64_t without_gradients = steps_end - result.gradient_bytes;

  run.clear_gradients();
  passes.begin_step(1);
  passes.run(forward, without_gradients);
  result.only_backward_peak = passes.run(backward_full, without_gradients).peak;

  run.clear_gradients();
  if (run.sharded() != nullptr) {
    run.sharded()->reset_peak();
  }
  passes.begin_step(4);
  passes.run(forward, without_gradients);
  result.first_backward_peak = passes.run(backward_full, without_gradients).peak;
  if (run.sums_once_a_step()) {
    result.whole_gradient_bytes = std::max<int64_t>(0, measuring.live() - steps_end);
    result.reductions_end_step = run.sharded()->reductions_end_step();
  }
  // Reductions of the last backward that are in flight are freed by the next one: they are not activations of the
  // micro-batches that run forward meanwhile.
  const int64_t rest = steps_end + result.whole_gradient_bytes;
  const int64_t in_flight = std::max<int64_t>(0, measuring.live() - rest);
  result.forward = passes.run(forward, rest);
  result.forward.kept -= in_flight;
  result.gathered_after_forward = measuring.gathered();
  result.backward = passes.run(backward_full, rest);
  passes.run(forward, rest);
  result.backward_input = passes.run(backward_input, rest);
  result.backward_weight = passes.run(backward_weight, rest);
  passes.run(forward, rest);
  const ActionMeasurement last = passes.run(backward_full, rest);
  result.last_backward_peak = last.peak;
  result.per_step = without(last.communication, result.backward.communication);
  result.backward.kept = result.backward_weight.kept = 0;  // only reductions in flight remain, of no micro-batch
  if (run.sharded() != nullptr) {
    result.gathered_peak = run.sharded()->gathered_bytes_peak();
  }
}

// Runs steps of a pipeline, whose forwards and backwards need not alternate: at first, each unit is expected once
// before a change of direction, then twice and three times.
void measure_orders(StageRun& run, Passes& passes) {
  for (const std::string_view step : {"FFBBFBFFIIWW", "FFFBBB", "FFFIIIWWW", "FFFBBB", "FFFBFBBB"}) {
    run.clear_gradients();
    passes.begin_step(std::count(step.begin(), step.end(), 'F'));
    for (const char letter : step) {
      passes.run(
          letter == 'F'   ? ActionKind::forward
          : letter == 'B' ? ActionKind::backward_full
          : letter == 'I' ? ActionKind::backward_input
                          : ActionKind::backward_weight);
    }
  }
}

int64_t optimizer_bytes(const train::TrainConfig& config, const train::TrainSpec& spec, StageRun& run) {
  std::vector<optim::NamedParameter> here;
  for (const auto& [name, parameter] : nn::named_parameters(run.model())) {
    if (parameter->trainable()) {
      here.push_back({.name = name, .value = parameter->value(), .placement = train::placement_of(*parameter)});
    }
  }
  optim::OptimizerContext context{.parameters = run.trained(), .seed = static_cast<uint64_t>(config.debug.seed)};
  if (run.context() != nullptr) {
    context.whole_tensors =
        std::make_shared<shard::MeshWholeTensors>(*run.context(), nn::named_parameters(run.model()));
  }
  const auto optimizer = spec.build.optimizer(config.optimizer, context);
  optimizer->allocate(here);
  return optimizer->state_bytes();
}

int64_t product_of_degrees(const train::ParallelismConfig& config) {
  return config.pipeline_parallel_degree * config.data_parallel_replicate_degree *
         std::max<int64_t>(config.data_parallel_shard_degree, 1) * config.context_parallel_degree *
         config.tensor_parallel_degree;
}

void check_place(const train::TrainConfig& config, const StagePlace& place) {
  const auto stages = static_cast<int64_t>(place.rank_of_stage.size());
  const int64_t ranks = config.parallelism.pipeline_parallel_degree;
  require(
      place.stage >= 0 && place.stage < stages,
      "measure_stage: expected a stage from 0 to {}, found {}",
      stages - 1,
      place.stage);
  require(
      stages == 1 || ranks > 1,
      "measure_stage: {} stages need parallelism.pipeline_parallel_degree above 1, found {}",
      stages,
      ranks);
  for (const int64_t rank : place.rank_of_stage) {
    require(rank >= 0 && rank < ranks, "measure_stage: expected ranks from 0 to {}, found {}", ranks - 1, rank);
  }
}
}  // namespace

StageMeasurement measure_run(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    const StagePlace& place,
    at::Device device,
    mesh::Transport* transport,
    SeenCollectives& seen) {
  StageMeasurement result;
  StageRun run(config, spec, args, place, transport);
  MemoryMeter memory(device.type());
  Measuring measuring(run, memory, seen);
  run.allocate(device);
  measure_parameters(config, run, result);
  Passes passes(run, measuring, result.passes);
  measure_actions(run, measuring, passes, result);
  if (!place.with_passes) {
    result.passes.clear();
  } else if (place.rank_of_stage.size() > 1) {
    measure_orders(run, passes);
  }
  run.clear_gradients();
  result.optimizer_bytes = optimizer_bytes(config, spec, run);
  return result;
}

StageMeasurement measure_stage(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const descriptor::ModelArgs& args,
    const StagePlace& place) {
  check_place(config, place);
  const OnMeta on_meta;
  const int64_t world = place.world_size > 0 ? place.world_size : product_of_degrees(config.parallelism);
  const int64_t rank =
      place.rank_of_stage[static_cast<size_t>(place.stage)] * (world / config.parallelism.pipeline_parallel_degree);
  SeenCollectives seen;
  const auto observe = [&](size_t number, bool waited) {
    if (seen.observe) {
      seen.observe(number, waited);
    }
  };
  const auto transport = mesh::fake_transport(
      rank,
      world,
      [&](const mesh::FakeCollective& one) {
        seen.all.push_back(one);
        observe(seen.all.size() - 1, /*waited=*/false);
      },
      [&](size_t number) { observe(number, /*waited=*/true); });
  return measure_run(config, spec, args, place, at::Device(at::kMeta), transport.get(), seen);
}

}  // namespace lehr::plan
