// The order in which a model uses its units: what to gather next.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace lehr::shard {

class ShardUnit;

/// Foretells from one run through the units what comes in the next one. All ranks run the same program, so all of them
/// foretell the same.
class UnitOrder {
 public:
  explicit UnitOrder(std::vector<ShardUnit*> expected = {}) : expected_(std::move(expected)) {}

  /// Notes that `unit` is used now, and gives the one that will follow; null if that is not known.
  ShardUnit* enter(ShardUnit* unit) {
    if (seen_.empty() || seen_.back() != unit) {
      seen_.push_back(unit);
      const auto from = expected_.begin() + static_cast<std::ptrdiff_t>(next_);
      auto found = std::find(from, expected_.end(), unit);
      found = found == expected_.end() ? std::find(expected_.begin(), from, unit) : found;
      next_ = found == expected_.end() || *found != unit ? next_ : static_cast<size_t>(found - expected_.begin()) + 1;
    }
    return next_ < expected_.size() ? expected_[next_] : nullptr;
  }

  /// The run is over; the next one is expected to be like it if `learn`.
  void restart(bool learn) {
    if (learn && !seen_.empty()) {
      expected_ = seen_;
    }
    seen_.clear();
    next_ = 0;
  }

 private:
  std::vector<ShardUnit*> expected_;
  std::vector<ShardUnit*> seen_;
  size_t next_ = 0;  // in expected_
};

}  // namespace lehr::shard
