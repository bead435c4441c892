// Clocks, and process memory from /proc.
#include "lehr/metric/throughput.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

namespace lehr::metric {

ThroughputMeter::ThroughputMeter(size_t window, Clock clock)
    : window_(std::max<size_t>(window, 1)), clock_(std::move(clock)), began_(clock_()) {}

double ThroughputMeter::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void ThroughputMeter::step(int64_t tokens, double flops) {
  const double now = clock_();
  steps_.push_back(
      {.seconds = counted_ + (paused_ ? 0 : now - began_), .tokens = static_cast<double>(tokens), .flops = flops});
  if (steps_.size() > window_) {
    steps_.pop_front();
  }
  began_ = now;
  counted_ = 0;
}

void ThroughputMeter::restart() {
  began_ = clock_();
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

double ThroughputMeter::per_second(double Step::*amount) const {
  double seconds = 0;
  double total = 0;
  for (const auto& step : steps_) {
    seconds += step.seconds;
    total += step.*amount;
  }
  return seconds > 0 ? total / seconds : 0;
}

double ThroughputMeter::tokens_per_second() const {
  return per_second(&Step::tokens);
}

double ThroughputMeter::flops_per_second() const {
  return per_second(&Step::flops);
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

double model_flops_utilization(double flops_per_second, double peak_flops) {
  return peak_flops > 0 ? flops_per_second / peak_flops : 0;
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
