// Order in which a model uses its FSDP units: predicts the next unit to prefetch.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace lehr::shard {

class FsdpUnit;

/// Predicts the next unit from the order of the previous pass. All ranks run the same program, so all predict the same.
class PrefetchOrder {
 public:
  explicit PrefetchOrder(std::vector<FsdpUnit*> expected = {}) : expected_(std::move(expected)) {}

  /// Records that `unit` is used now, and returns the one that is expected to follow; null if none is.
  FsdpUnit* enter(FsdpUnit* unit) {
    if (seen_.empty() || seen_.back() != unit) {
      seen_.push_back(unit);
      const auto from = expected_.begin() + static_cast<std::ptrdiff_t>(next_);
      auto found = std::find(from, expected_.end(), unit);
      found = found == expected_.end() ? std::find(expected_.begin(), from, unit) : found;
      next_ = found == expected_.end() || *found != unit ? next_ : static_cast<size_t>(found - expected_.begin()) + 1;
    }
    return next_ < expected_.size() ? expected_[next_] : nullptr;
  }

  /// Returns the order of the pass that is expected.
  const std::vector<FsdpUnit*>& expected() const { return expected_; }

  /// Ends a pass. With `learn`, its order becomes the expected one.
  void restart(bool learn) {
    if (learn && !seen_.empty()) {
      expected_ = seen_;
    }
    seen_.clear();
    next_ = 0;
  }

 private:
  std::vector<FsdpUnit*> expected_;
  std::vector<FsdpUnit*> seen_;
  size_t next_ = 0;  // index in expected_
};

}  // namespace lehr::shard
