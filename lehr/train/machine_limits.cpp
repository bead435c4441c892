#include "lehr/train/machine_limits.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <functional>

#include "lehr/metric/throughput.h"
#include "lehr/ops/matmul.h"

namespace lehr::train {

namespace {
double seconds_of(const std::function<void()>& work) {
  const double begin = metric::ThroughputMeter::steady_seconds();
  work();
  return metric::ThroughputMeter::steady_seconds() - begin;
}

// The most that one of `works`, which do `amount` each, does a second, tried in turn within `seconds`.
double best_rate(const std::vector<std::pair<std::function<void()>, double>>& works, double seconds) {
  const double deadline = metric::ThroughputMeter::steady_seconds() + seconds;
  for (const auto& [work, amount] : works) {
    work();  // fresh pages, a library's first call
  }
  double best = 0;
  do {
    for (const auto& [work, amount] : works) {
      best = std::max(best, amount / std::max(seconds_of(work), 1e-9));
    }
  } while (metric::ThroughputMeter::steady_seconds() < deadline);
  return best;
}

double best_product(at::ScalarType dtype, double seconds) {
  constexpr int64_t kLargest = 4096;
  const double deadline = metric::ThroughputMeter::steady_seconds() + seconds;
  double best = 0;
  for (int64_t size = 512; size <= kLargest; size *= 2) {
    const auto options = at::TensorOptions(dtype);
    const at::Tensor a = at::ones({size, size}, options), b = at::ones({size, size}, options);
    const double flops = 2.0 * static_cast<double>(size * size * size);
    best =
        std::max(best, best_rate({{[&] { ops::product(a, b); }, flops}, {[&] { at::mm(a, b); }, flops}}, seconds / 8));
    // Four more products at least of eight times the work: two to warm up, two that count.
    if (metric::ThroughputMeter::steady_seconds() + 4 * 8 * flops / best > deadline) {
      break;
    }
  }
  return best;
}

double best_memory(double seconds) {
  constexpr int64_t kElements = 64 << 20;
  const at::Tensor a = at::ones({kElements}), b = at::ones({kElements});
  at::Tensor c = at::ones({kElements});
  const auto bytes = static_cast<double>(a.nbytes());
  return best_rate(
      {{[&] { c.copy_(a); }, 2 * bytes},
       {[&] { at::add_out(c, a, b, 3); }, 3 * bytes},
       {[&] { c.mul_(1.0); }, 2 * bytes}},
      seconds);
}
}  // namespace

MachineLimits measure_limits(at::ScalarType dtype, double seconds) {
  const at::NoGradGuard no_grad;
  return {.flops = best_product(dtype, seconds), .bytes_per_second = best_memory(seconds)};
}

}  // namespace lehr::train
