#include "lehr/train/machine_limits.h"

#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "lehr/base/error.h"
#include "lehr/base/parallel.h"
#include "lehr/base/usable_cores.h"
#include "lehr/memory/map_pages.h"
#include "lehr/ops/matmul/matmul.h"
#include "lehr/ops/register_peak/register_peak.h"

namespace lehr::train {

namespace {
using Clock = metric::ThroughputMeter::Clock;

double seconds_of(const std::function<void()>& work, const Clock& clock) {
  const double begin = clock();
  work();
  return clock() - begin;
}

// Returns the highest rate of `works`, in `amount` per second, tried in turn within `seconds`.
double best_rate(
    const std::vector<std::pair<std::function<void()>, double>>& works, double seconds, const Clock& clock) {
  const double deadline = clock() + seconds;
  for (const auto& [work, amount] : works) {
    work();  // warm-up: fresh pages, a library's first call
  }
  double best = 0;
  do {
    for (const auto& [work, amount] : works) {
      best = std::max(best, amount / std::max(seconds_of(work, clock), 1e-9));
    }
  } while (clock() < deadline);
  return best;
}

// A tensor of ones whose memory goes back to the system: LibTorch's allocator, or Lehr's, would keep it, and it would
// count as memory of the run.
class Ones {
 public:
  explicit Ones(int64_t elements) : bytes_(static_cast<size_t>(elements) * sizeof(float)) {
    memory_ = map_pages(bytes_);
    if (memory_ == nullptr) {
      fail_runtime("machine limits: the system has no {} bytes left to measure the memory bandwidth", bytes_);
    }
    tensor = at::from_blob(memory_, {elements}, at::kFloat).fill_(1);
  }
  ~Ones() { munmap(memory_, bytes_); }
  Ones(const Ones&) = delete;
  Ones& operator=(const Ones&) = delete;

  at::Tensor tensor;

 private:
  size_t bytes_;
  void* memory_;
};

double best_of_three(double seconds, const Clock& clock) {
  constexpr int64_t kElements = 64 << 20;
  const Ones first(kElements), second(kElements), third(kElements);
  const at::Tensor a = first.tensor, b = second.tensor;
  at::Tensor c = third.tensor;
  const auto bytes = static_cast<double>(a.nbytes());
  return best_rate(
      {{[&] { c.copy_(a); }, 2 * bytes},
       {[&] { at::add_out(c, a, b, 3); }, 3 * bytes},
       {[&] { c.mul_(1.0); }, 2 * bytes}},
      seconds,
      clock);
}

double best_memory(double seconds, const Clock& clock) {
  const double best = best_of_three(seconds, clock);
  // Resets the kernel's record of the peak memory of this process, to exclude the measurement. A failure is harmless.
  std::ofstream("/proc/self/clear_refs") << "5";
  return best;
}

}  // namespace

double cpu_peak_flops(at::ScalarType dtype, double seconds) {
  return ops::register_peak_per_thread(dtype, seconds) * std::min<double>(num_threads(), usable_cores());
}

double best_matmul_flops(at::Device device, at::ScalarType dtype, double seconds, const Clock& clock) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kSmallest = 512;
  constexpr int64_t kLargest = 8192;
  const double deadline = clock() + seconds;
  double best = 0;
  for (int64_t size = kSmallest; size <= kLargest; size *= 2) {
    const auto options = at::TensorOptions(dtype).device(device);
    const at::Tensor a = at::randn({size, size}, options), b = at::randn({size, size}, options);
    const double flops = 2.0 * static_cast<double>(size * size * size);
    const auto finish = [](const at::Tensor& c) { c.view({-1})[0].item<double>(); };  // waits for a GPU
    best = std::max(
        best,
        best_rate(
            {{[&] { finish(ops::product(a, b)); }, flops}, {[&] { finish(at::mm(a, b)); }, flops}},
            seconds / 8,
            clock));
    // At least four more matmuls with eight times the work: two to warm up, two that count.
    if (clock() + 4 * 8 * flops / best > deadline) {
      break;
    }
  }
  return best;
}

MachineLimits measure_limits(at::ScalarType dtype, double seconds, const Clock& clock) {
  const at::NoGradGuard no_grad;
  return {.flops = cpu_peak_flops(dtype, seconds), .bytes_per_second = best_memory(seconds, clock)};
}

}  // namespace lehr::train
