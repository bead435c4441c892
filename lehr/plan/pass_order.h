// The order of a stage's forwards and backwards, on which an action's communication depends.
#pragma once

#include <compare>
#include <cstdint>
#include <map>

#include "lehr/pipeline/action.h"

namespace lehr::plan {

/// The place of a forward or backward ("pass") in its stage's step. Passes with the same place communicate alike.
struct PassPlace {
  enum class After { nothing, forward, backward };

  pipeline::ActionKind kind = pipeline::ActionKind::forward;
  After after = After::nothing;  ///< The stage's forward, backward or dgrad before this one, in this step.
  /// Whether the pass before it has prefetched the first FSDP unit of another one in its direction (in vain, if this
  /// one is in the other direction), and whether this one does.
  bool prefetched = false;
  bool prefetches = false;
  bool first = false;  ///< The stage's first forward of the step, or its first whole backward or wgrad,
  bool last = false;   ///< and its last whole backward or wgrad.
  auto operator<=>(const PassPlace&) const = default;
};

/// Names the places of a stage's passes, step after step. It follows shard::FsdpSchedule and shard::PrefetchOrder: the
/// units used between two changes of direction are expected after the next one.
class PassOrder {
 public:
  void begin_step(int64_t microbatches);
  /// Returns the place of the step's next pass.
  PassPlace next(pipeline::ActionKind kind);

 private:
  struct Direction {
    int64_t expected = 1;  // passes without a change of direction
    int64_t seen = 0;
  };
  void restart(Direction& direction);

  Direction forward_, backward_;
  bool was_forward_ = false;
  PassPlace::After after_ = PassPlace::After::nothing;
  bool prefetches_ = false;
  int64_t left_ = 0;        // whole backwards and wgrads of the step
  bool completed_ = false;  // one of them
};

/// Returns the entry of `passes` whose place resembles `place` most: of the same kind, and if possible also last,
/// first, after the same direction, prefetched, prefetching. Null if there is none of the kind.
template <class Pass>
const Pass* find_pass(const std::map<PassPlace, Pass>& passes, const PassPlace& place) {
  const Pass* best = nullptr;
  int most = -1;
  for (const auto& [other, pass] : passes) {
    const int same = 16 * int{other.last == place.last} + 8 * int{other.first == place.first} +
                     4 * int{other.after == place.after} + 2 * int{other.prefetched == place.prefetched} +
                     int{other.prefetches == place.prefetches};
    if (other.kind == place.kind && same > most) {
      best = &pass;
      most = same;
    }
  }
  return best;
}

}  // namespace lehr::plan
