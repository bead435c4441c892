// The text of a status line: how much of some work is done, and the time left.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace lehr {

/// Returns "stats, layers: 3 of 8, 12s left" after `seconds`, for work whose parts take equally long; without the time
/// if nothing is done yet.
std::string progress_text(const std::string& what, int64_t done, int64_t all, double seconds);

/// The time since some work began, which is now.
class ProgressClock {
 public:
  /// Returns progress_text for the time since construction.
  std::string text(const std::string& what, int64_t done, int64_t all) const {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began_;
    return progress_text(what, done, all, seconds.count());
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace lehr
