#include "lehr/plan/pass_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lehr::plan {
namespace {

using pipeline::ActionKind;

ActionKind kind_of(char letter) {
  switch (letter) {
    case 'F':
      return ActionKind::forward;
    case 'B':
      return ActionKind::backward_full;
    case 'I':
      return ActionKind::backward_input;
    default:
      return ActionKind::backward_weight;
  }
}

// Each pass of a step: "<" if its first unit was prefetched, its letter, ">" if it prefetches.
std::string prefetches(PassOrder& order, const std::string& step) {
  order.begin_step(std::count(step.begin(), step.end(), 'F'));
  std::string text;
  for (const char letter : step) {
    const PassPlace place = order.next(kind_of(letter));
    text += std::string(place.prefetched ? "<" : "") + letter + (place.prefetches ? "> " : " ");
  }
  text.pop_back();
  return text;
}

// As in shard::PrefetchOrder: at first each unit is expected once, then as often as since the last change of direction.
TEST(PassOrder, ExpectsWhatWasUsedSinceTheLastChangeOfDirection) {
  PassOrder order;
  EXPECT_EQ(prefetches(order, "FFFBBB"), "F F F B B B");
  EXPECT_EQ(prefetches(order, "FFFBBB"), "F> <F> <F B> <B> <B");
  EXPECT_EQ(prefetches(order, "FBFFBB"), "F> <B> <F F B B");  // the first prefetch of each direction is not used
  EXPECT_EQ(prefetches(order, "FFFFBBBB"), "F> <F F> <F B> <B B> <B");
  EXPECT_EQ(prefetches(order, "FIWFIW"), "F> <I> W <F I W");
}

TEST(PassOrder, KnowsTheFirstAndTheLastOfAStep) {
  PassOrder order;
  order.begin_step(3);
  std::string text;
  for (const char letter : std::string("FFIFBWB")) {
    const PassPlace place = order.next(kind_of(letter));
    text += letter + std::string(place.first ? " first" : "") + (place.last ? " last" : "") +
            (place.after == PassPlace::After::forward    ? " after forward"
             : place.after == PassPlace::After::backward ? " after backward"
                                                         : "") +
            ", ";
  }
  EXPECT_EQ(
      text,
      "F first, F after forward, I after forward, F after backward, B first after forward, W after backward, "
      "B last after backward, ");
}

TEST(FindPass, PrefersWhatHappensOncePerStep) {
  using After = PassPlace::After;
  const std::map<PassPlace, int> passes{
      {{.kind = ActionKind::forward, .first = true}, 0},
      {{.kind = ActionKind::backward_full, .after = After::forward, .first = true}, 1},
      {{.kind = ActionKind::backward_full, .after = After::forward}, 2},
      {{.kind = ActionKind::backward_full, .after = After::backward, .prefetched = true}, 3},
      {{.kind = ActionKind::backward_full, .after = After::forward, .last = true}, 4}};
  const auto found = [&](const PassPlace& place) { return *find_pass(passes, place); };
  EXPECT_EQ(found({.kind = ActionKind::backward_full, .after = After::backward}), 3);
  EXPECT_EQ(found({.kind = ActionKind::backward_full, .after = After::forward, .prefetched = true}), 2);
  EXPECT_EQ(found({.kind = ActionKind::backward_full, .after = After::backward, .last = true}), 4);
  EXPECT_EQ(found({.kind = ActionKind::forward, .after = After::backward}), 0);
  EXPECT_EQ(find_pass(passes, {.kind = ActionKind::backward_weight}), nullptr);
}

}  // namespace
}  // namespace lehr::plan
