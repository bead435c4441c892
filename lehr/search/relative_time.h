// Times that other work on the machine hardly changes: each is measured beside a reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "lehr/metric/throughput.h"

namespace lehr::search {

/// Measures calls of a function that waits for its work. Short work is repeated, so that a time is at least 10 ms.
class Timer {
 public:
  explicit Timer(std::function<void()> run) : run_(std::move(run)) {
    constexpr double kShortest = 0.01;
    run_();  // warms up
    repeats_ = std::clamp<int64_t>(static_cast<int64_t>(kShortest / std::max(time(), 1e-7)), 1, 10'000);
  }

  /// Returns the seconds of a call.
  double time() const {
    const double begin = metric::ThroughputMeter::steady_seconds();
    for (int64_t i = 0; i < repeats_; ++i) {
      run_();
    }
    return (metric::ThroughputMeter::steady_seconds() - begin) / static_cast<double>(repeats_);
  }

 private:
  std::function<void()> run_;
  int64_t repeats_ = 1;
};

/// Work that is timed right before and after all other work. Other load on the machine slows both, so their ratio is
/// nearly the same at any time.
class Reference {
 public:
  explicit Reference(std::function<void()> run) : timer_(std::move(run)) {}

  /// Returns the median of `rounds` ratios of the time of `run` to the reference's.
  double ratio(std::function<void()> run, int64_t rounds) {
    const Timer timer(std::move(run));
    std::vector<double> ratios;
    double before = own_time();
    for (int64_t round = 0; round < rounds; ++round) {
      const double seconds = timer.time();
      const double after = own_time();
      ratios.push_back(2 * seconds / (before + after));
      before = after;
    }
    const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
    std::nth_element(ratios.begin(), middle, ratios.end());
    return *middle;
  }

  /// Returns the shortest time of the reference so far.
  double least() const { return least_; }

 private:
  double own_time() {
    const double seconds = timer_.time();
    least_ = std::min(least_, seconds);
    return seconds;
  }

  Timer timer_;
  double least_ = std::numeric_limits<double>::infinity();
};

}  // namespace lehr::search
