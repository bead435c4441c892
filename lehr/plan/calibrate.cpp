// The figures of this computer's CPU, measured with the kernels of a training step.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "lehr/base/error.h"
#include "lehr/ops/attention/attention.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/plan/fraction_of.h"
#include "lehr/plan/layer_overhead.h"
#include "lehr/plan/machine.h"
#include "lehr/train/machine_limits.h"

namespace lehr::plan {

namespace {
constexpr double kSeconds = 0.25;
using Clock = metric::ThroughputMeter::Clock;

// Returns the best rate of forward and backward, which compute `flops` together.
double training_rate(const std::function<at::Tensor()>& forward, double flops, const Clock& now) {
  const auto step = [&] {
    const at::Tensor output = forward();
    output.backward(at::ones_like(output));
  };
  step();  // warm-up
  double best = 0;
  const double deadline = now() + kSeconds;
  do {
    const double begin = now();
    step();
    best = std::max(best, flops / (now() - begin));
  } while (now() < deadline);
  return best;
}

at::Tensor trained(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, dtype).set_requires_grad(true);
}

// The attention of a layer: eight heads of 64, and a sequence of 1,024 tokens.
double attention_flops(at::ScalarType dtype, const Clock& clock) {
  constexpr int64_t kTokens = 1024, kHeads = 8, kHeadDim = 64;
  const at::Tensor q = trained({1, kTokens, kHeads, kHeadDim}, dtype), k = trained(q.sizes(), dtype),
                   v = trained(q.sizes(), dtype);
  // Two matmuls per pair of a query and a visible key forward, and four backward.
  return training_rate(
      [&] { return ops::attention(q, k, v); }, 6.0 * kTokens * (kTokens + 1) / 2 * kHeads * 2 * kHeadDim, clock);
}

// Eight experts of 64 tokens each.
double expert_flops(at::ScalarType dtype, const Clock& clock) {
  constexpr int64_t kExperts = 8, kTokens = 64, kIn = 512, kOut = 512;
  const at::Tensor input = trained({kExperts * kTokens, kIn}, dtype), weight = trained({kExperts, kOut, kIn}, dtype);
  const at::Tensor ends = (at::arange(kExperts, at::kInt) + 1) * kTokens;
  return training_rate(
      [&] { return ops::grouped_linear(input, weight, ends); }, 6.0 * kExperts * kTokens * kIn * kOut, clock);
}

}  // namespace

double fraction_of(double flops, double tflops, const char* what) {
  const double fraction = flops / (tflops * 1e12);
  if (fraction > 1) {
    fail_runtime(
        "lehr plan --calibrate: {} reached {:.4g} TFLOP/s, above the {:.4g} TFLOP/s that were measured as the peak; "
        "the machine was probably busy: measure again",
        what,
        flops / 1e12,
        tflops);
  }
  return fraction;
}

Machine calibrate_cpu(Machine machine, const Clock& clock) {
  const train::MachineLimits limits = train::measure_limits(at::kFloat, kSeconds, clock);
  machine.tflops_float32 = limits.flops / 1e12;
  machine.tflops_bfloat16 = train::cpu_peak_flops(at::kBFloat16) / 1e12;
  machine.tflops_float64 = train::cpu_peak_flops(at::kDouble) / 1e12;
  const auto matmuls = [&](at::ScalarType dtype) { return train::best_matmul_flops(at::kCPU, dtype, kSeconds, clock); };
  const double in_float32 = machine.tflops_float32;
  const double in_bfloat16 = machine.tflops_bfloat16;
  machine.achieved_fraction = fraction_of(matmuls(at::kFloat), in_float32, "a matmul");
  machine.achieved_expert_fraction = fraction_of(expert_flops(at::kFloat, clock), in_float32, "a matmul of experts");
  machine.achieved_attention_fraction = fraction_of(attention_flops(at::kFloat, clock), in_float32, "attention");
  machine.achieved_fraction_bfloat16 = fraction_of(matmuls(at::kBFloat16), in_bfloat16, "a matmul in bfloat16");
  machine.achieved_attention_fraction_bfloat16 =
      fraction_of(attention_flops(at::kBFloat16, clock), in_bfloat16, "attention in bfloat16");
  machine.layer_overhead_us = 1e6 * layer_overhead(kSeconds, clock);
  machine.memory_gb_per_second = limits.bytes_per_second / 1e9;
  machine.achieved_memory_fraction = 1;
  machine.memory_gb = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) / 1e9;
  machine.reserved_gb = std::min(machine.reserved_gb, machine.memory_gb / 2);
  return machine;
}

}  // namespace lehr::plan
