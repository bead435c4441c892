// Nanoseconds per parameter of an optimizer step, and bytes of optimizer state per parameter.
#include <benchmark/benchmark.h>

#include "lehr/optim/build_optimizer.h"

namespace {
using namespace lehr;
using optim::OptimizerKind;

constexpr int64_t kRows = 4096;
constexpr int64_t kColumns = 1024;

void step(benchmark::State& state, const optim::OptimizerConfig& config, at::ScalarType dtype) {
  const auto optimizer =
      optim::build_optimizer(config, {.parameters = {{.name = "w", .shape = {kRows, kColumns}}}, .seed = 1});
  const at::Tensor w = at::randn({kRows, kColumns}).to(dtype);
  const at::Tensor grad = at::randn({kRows, kColumns}).to(dtype);
  optimizer->step({{.name = "w", .value = w, .grad = grad}});
  for (auto _ : state) {
    optimizer->step({{.name = "w", .value = w, .grad = grad}});
  }
  const auto elements = static_cast<double>(kRows * kColumns);
  state.counters["ns_per_parameter"] =
      benchmark::Counter(elements * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["state_bytes"] = static_cast<double>(optimizer->state_bytes()) / elements;
}

BENCHMARK_CAPTURE(step, adamw_float32, {}, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(step, adamw_bfloat16, {}, at::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(step, stochastic_adamw_float32_state, {.name = OptimizerKind::stochastic_adamw}, at::kBFloat16)
    ->UseRealTime();
BENCHMARK_CAPTURE(
    step,
    stochastic_adamw_bfloat16_state,
    (optim::OptimizerConfig{.name = OptimizerKind::stochastic_adamw, .state_dtype = "bfloat16"}),
    at::kBFloat16)
    ->UseRealTime();
BENCHMARK_CAPTURE(step, sgd_float32, {.name = OptimizerKind::sgd}, at::kFloat)->UseRealTime();
BENCHMARK_CAPTURE(step, muon_float32, {.name = OptimizerKind::muon}, at::kFloat)->UseRealTime();

}  // namespace
