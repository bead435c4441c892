#include "lehr/plan/pass_order.h"

namespace lehr::plan {

using pipeline::ActionKind;

// What was used since the last change of direction is expected from now on.
void PassOrder::restart(Direction& direction) {
  direction = {.expected = direction.seen > 0 ? direction.seen : direction.expected};
}

void PassOrder::begin_step(int64_t microbatches) {
  restart(forward_);
  restart(backward_);
  after_ = PassPlace::After::nothing;
  prefetches_ = false;
  left_ = microbatches;
  completed_ = false;
}

PassPlace PassOrder::next(ActionKind kind) {
  const bool forward = kind == ActionKind::forward;
  PassPlace place{.kind = kind, .after = after_};
  if (kind == ActionKind::backward_full || kind == ActionKind::backward_weight) {
    place.first = !completed_;
    place.last = --left_ == 0;
    completed_ = true;
  }
  if (kind == ActionKind::backward_weight) {  // reads no parameters
    place.after = PassPlace::After::backward;
    return place;
  }
  Direction& direction = forward ? forward_ : backward_;
  if (forward != was_forward_) {
    restart(direction);
    was_forward_ = forward;
  }
  if (forward) {
    place.first = after_ == PassPlace::After::nothing;
  }
  place.prefetched = prefetches_;
  // After the expected passes, the same order is expected again, but only once a unit of it is used.
  place.prefetches = prefetches_ = direction.seen++ % direction.expected + 1 < direction.expected;
  after_ = forward ? PassPlace::After::forward : PassPlace::After::backward;
  return place;
}

}  // namespace lehr::plan
