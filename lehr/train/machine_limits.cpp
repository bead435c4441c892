#include "lehr/train/machine_limits.h"

#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <functional>

#include "lehr/base/parallel.h"
#include "lehr/base/usable_cores.h"
#include "lehr/metric/throughput.h"
#include "lehr/ops/matmul.h"
#include "lehr/ops/register_peak.h"

namespace lehr::train {

namespace {
double seconds_of(const std::function<void()>& work) {
  const double begin = metric::ThroughputMeter::steady_seconds();
  work();
  return metric::ThroughputMeter::steady_seconds() - begin;
}

// Returns the highest rate of `works`, in `amount` per second, tried in turn within `seconds`.
double best_rate(const std::vector<std::pair<std::function<void()>, double>>& works, double seconds) {
  const double deadline = metric::ThroughputMeter::steady_seconds() + seconds;
  for (const auto& [work, amount] : works) {
    work();  // warm-up: fresh pages, a library's first call
  }
  double best = 0;
  do {
    for (const auto& [work, amount] : works) {
      best = std::max(best, amount / std::max(seconds_of(work), 1e-9));
    }
  } while (metric::ThroughputMeter::steady_seconds() < deadline);
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

double cpu_peak_flops(at::ScalarType dtype, double seconds) {
  return ops::register_peak_per_thread(dtype, seconds) * std::min<double>(num_threads(), usable_cores());
}

double best_matmul_flops(at::Device device, at::ScalarType dtype, double seconds) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kSmallest = 512;
  constexpr int64_t kLargest = 8192;
  const double deadline = metric::ThroughputMeter::steady_seconds() + seconds;
  double best = 0;
  for (int64_t size = kSmallest; size <= kLargest; size *= 2) {
    const auto options = at::TensorOptions(dtype).device(device);
    const at::Tensor a = at::randn({size, size}, options), b = at::randn({size, size}, options);
    const double flops = 2.0 * static_cast<double>(size * size * size);
    const auto finish = [](const at::Tensor& c) { c.view({-1})[0].item<double>(); };  // waits for a GPU
    best = std::max(
        best,
        best_rate({{[&] { finish(ops::product(a, b)); }, flops}, {[&] { finish(at::mm(a, b)); }, flops}}, seconds / 8));
    // At least four more matmuls with eight times the work: two to warm up, two that count.
    if (metric::ThroughputMeter::steady_seconds() + 4 * 8 * flops / best > deadline) {
      break;
    }
  }
  return best;
}

MachineLimits measure_limits(at::ScalarType dtype, double seconds) {
  const at::NoGradGuard no_grad;
  return {.flops = cpu_peak_flops(dtype, seconds), .bytes_per_second = best_memory(seconds)};
}

}  // namespace lehr::train
