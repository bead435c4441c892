// Clocks, a stopwatch around matrix products, and a look into /proc.
#include "lehr/metric/throughput.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

#include "lehr/base/error.h"

namespace lehr::metric {

ThroughputMeter::ThroughputMeter(size_t window, Clock clock)
    : window_(std::max<size_t>(window, 1)), clock_(std::move(clock)), began_(clock_()) {}

double ThroughputMeter::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void ThroughputMeter::step(int64_t tokens) {
  const double now = clock_();
  steps_.push_back({.seconds = counted_ + (paused_ ? 0 : now - began_), .tokens = tokens});
  if (steps_.size() > window_) {
    steps_.pop_front();
  }
  began_ = now;
  counted_ = 0;
}

void ThroughputMeter::pause() {
  if (!paused_) {
    counted_ += clock_() - began_;
    paused_ = true;
  }
}

void ThroughputMeter::resume() {
  if (paused_) {
    began_ = clock_();
    paused_ = false;
  }
}

double ThroughputMeter::tokens_per_second() const {
  double seconds = 0;
  int64_t tokens = 0;
  for (const auto& step : steps_) {
    seconds += step.seconds;
    tokens += step.tokens;
  }
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

double ThroughputMeter::step_seconds() const {
  double seconds = 0;
  for (const auto& step : steps_) {
    seconds += step.seconds;
  }
  return steps_.empty() ? 0 : seconds / static_cast<double>(steps_.size());
}

double ThroughputMeter::last_step_seconds() const {
  return steps_.empty() ? 0 : steps_.back().seconds;
}

double model_flops_utilization(double flops_per_token, double tokens_per_second, double peak_flops) {
  return peak_flops > 0 ? flops_per_token * tokens_per_second / peak_flops : 0;
}

double measure_peak_flops(at::Device device, at::ScalarType dtype, double seconds) {
  constexpr int64_t kSmallest = 512;
  constexpr int64_t kLargest = 8192;
  require(at::isFloatingType(dtype), "peak: expected a floating-point dtype, found {}", c10::toString(dtype));
  const at::NoGradGuard no_grad;
  const double deadline = ThroughputMeter::steady_seconds() + seconds;
  const auto options = at::TensorOptions(dtype).device(device);
  double best = 0;
  int64_t size = kSmallest;
  at::Tensor a = at::ones({size, size}, options);
  for (bool warm = false;;) {
    const double begin = ThroughputMeter::steady_seconds();
    const at::Tensor c = at::matmul(a, a);
    c.view({-1})[0].item<double>();  // waits for an accelerator
    const double end = ThroughputMeter::steady_seconds();
    const double elapsed = end - begin;
    if (warm) {
      best = std::max(best, 2.0 * static_cast<double>(size * size * size) / elapsed);
    }
    if (warm && size < kLargest && end + 3 * 8 * elapsed < deadline) {  // room for three of the next size
      size *= 2;
      a = at::ones({size, size}, options);
      warm = false;
      continue;
    }
    if (warm && end + elapsed > deadline) {
      return best;
    }
    warm = true;
  }
}

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t kibibytes = 0;
    words >> key >> kibibytes;
    if (key == "VmRSS:") {
      memory.resident = kibibytes * 1024;
    } else if (key == "VmHWM:") {
      memory.peak_resident = kibibytes * 1024;
    }
  }
  return memory;
}

}  // namespace lehr::metric
