// State maps as graphs: names, groups, composition, errors.
#include "lehr/state/state_map.h"

#include <gmock/gmock.h>

#include "test/state/support.h"

namespace lehr::state {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Names = std::vector<std::string>;

// "a b -> c" for each group, in order.
Names groups_of(const StateMap& map) {
  Names texts;
  for (const StateGroup& group : map.groups()) {
    std::string text;
    for (const auto& name : group.inputs) {
      text += name + " ";
    }
    text += "->";
    for (const auto& name : group.outputs) {
      text += " " + name;
    }
    texts.push_back(text);
  }
  return texts;
}

Names operations_of(const StateMap& map) {
  Names texts;
  for (const MapStep& step : map.steps()) {
    texts.push_back(describe(step.op));
  }
  return texts;
}

TEST(StateMap, LeavesListTheirInputsAndOutputs) {
  EXPECT_THAT(groups_of(identity({"a", "b"})), ElementsAre("a -> a", "b -> b"));
  EXPECT_THAT(groups_of(rename("a", "b")), ElementsAre("a -> b"));
  EXPECT_THAT(groups_of(identity({"x", "y"}).scope("model.", "")), ElementsAre("model.x -> x", "model.y -> y"));
  EXPECT_THAT(groups_of(stack({"a", "b"}, "c", 0)), ElementsAre("a b -> c"));
  EXPECT_THAT(groups_of(split("c", {"a", "b"}, 1, {2, 3})), ElementsAre("c -> a b"));
  EXPECT_THAT(groups_of(tie("a", {"b", "c"})), ElementsAre("a -> b c"));
  EXPECT_THAT(operations_of(slice("a", "b", 0, {4, 8}, 16)), ElementsAre("slice 0 [4:8 of 16]"));
  EXPECT_THAT(groups_of(StateMap()), IsEmpty());
}

TEST(StateMap, ReordersPartsThatCoverADimensionOnce) {
  const StateMap map = reorder("a", "b", 0, {{4, 6}, {0, 1}, {1, 4}});
  EXPECT_THAT(groups_of(map), ElementsAre("a -> b"));
  EXPECT_THAT(operations_of(map), ElementsAre("split 0 [1, 3, 2]", "concatenate 0 [2, 1, 3]"));
  EXPECT_THAT(operations_of(map.inverse()), ElementsAre("split 0 [2, 1, 3]", "concatenate 0 [1, 3, 2]"));
  for (const std::vector<Range>& parts : {std::vector<Range>{{4, 6}, {0, 3}}, {{2, 6}, {0, 3}}, {{1, 2}}}) {
    EXPECT_THAT(
        error_of([&] { reorder("a", "b", 0, parts); }), HasSubstr("a: expected parts that cover dimension 0 once"));
  }
}

TEST(StateMap, InverseOfTheInverseIsTheMap) {
  const StateMap map = parallel({
      rename("a", "b"),
      stack({"s0", "s1"}, "s", -1),
      unstack("u", {"u0", "u1"}, 0),
      concatenate({"c0", "c1"}, "c", 0, {1, 2}),
      split("p", {"p0", "p1"}, 1, {1, 2}),
      transpose("t", "tt", 0, 1),
      squeeze("q", "qq", 0),
      unsqueeze("r", "rr", 2),
      slice("l", "ll", 0, {1, 2}, 3),
      tie("e", {"e0", "e1"}),
  });
  const StateMap back = map.inverse();
  EXPECT_EQ(back.input_names(), map.output_names());
  EXPECT_EQ(back.output_names(), map.input_names());
  EXPECT_THAT(
      operations_of(back),
      ElementsAre(
          "untie",
          "place 0 [1:2 of 3]",
          "squeeze 2",
          "unsqueeze 0",
          "transpose 0 1",
          "concatenate 1 [1, 2]",
          "split 0 [1, 2]",
          "stack 0",
          "unstack -1"));
  EXPECT_EQ(groups_of(back.inverse()), groups_of(map));
  EXPECT_EQ(operations_of(back.inverse()), operations_of(map));
}

// d9d's golden case: names that a later map reads and no earlier one produces are inputs of the sequence.
TEST(StateMap, SequencesPassOtherNamesThrough) {
  const StateMap map = sequential({rename("a", "temp"), stack({"temp", "b"}, "result", 0)});
  EXPECT_THAT(groups_of(map), ElementsAre("a b -> result"));
  EXPECT_THAT(
      groups_of(sequential({identity({"a", "b"}), rename("a", "c")})), UnorderedElementsAre("b -> b", "a -> c"));
  EXPECT_THAT(groups_of(sequential({})), IsEmpty());
  EXPECT_THAT(groups_of(sequential({StateMap(), rename("a", "b"), StateMap()})), ElementsAre("a -> b"));
}

TEST(StateMap, SequencesMayExchangeNames) {
  const StateMap exchange = parallel({rename("a", "b"), rename("b", "a")});
  EXPECT_THAT(groups_of(exchange), ElementsAre("a -> b", "b -> a"));
  EXPECT_THAT(groups_of(sequential({exchange, exchange})), ElementsAre("b -> b", "a -> a"))
      << "by the second map's order";
}

TEST(StateMap, GroupsAreTheConnectedComponents) {
  const StateMap fused = sequential(
      {split("gate_up", {"gate", "up"}, 1, {2, 2}), transpose("gate", "gate.T", 1, 2), rename("up", "up.T")});
  EXPECT_THAT(groups_of(fused), ElementsAre("gate_up -> gate.T up.T"));
  const StateMap through = sequential({unstack("s", {"a", "b"}, 0), stack({"a", "b"}, "t", 0), rename("x", "y")});
  EXPECT_THAT(groups_of(through), ElementsAre("s -> t", "x -> y"));
}

TEST(StateMap, ScopesAddPrefixesOnBothSides) {
  EXPECT_THAT(groups_of(rename("a", "b").scope("model.", "")), ElementsAre("model.a -> b"));
  EXPECT_THAT(groups_of(stack({"a", "b"}, "c", 0).scope("x.", "y.")), ElementsAre("x.a x.b -> y.c"));
}

TEST(StateMap, RestrictsToSomeOutputs) {
  const StateMap map = parallel(
      {stack({"a0", "a1"}, "a", 0),
       split("bc", {"b", "c"}, 0, {1, 1}),
       rename("d", "d.weight"),
       tie("e", {"in", "out"})});
  EXPECT_THAT(groups_of(map.to({"a", "d.weight"})), ElementsAre("a0 a1 -> a", "d -> d.weight"));
  EXPECT_THAT(groups_of(map.to({"c"})), ElementsAre("bc -> c"));
  EXPECT_THAT(groups_of(map.to({"out"})), ElementsAre("e -> out"));
  EXPECT_THAT(groups_of(map.to({})), IsEmpty());
  EXPECT_THAT(error_of([&] { map.to({"f"}); }), HasSubstr("f: the state map produces no tensor of this name"));
  EXPECT_THAT(error_of([&] { map.to({"c"}).inverse(); }), HasSubstr("split 0 [1, 1]: has no inverse"));
}

TEST(StateMap, RestrictsToOutputsOfSomeInputs) {
  const StateMap back =
      parallel({stack({"a0", "a1"}, "a", 0), tie("e", {"in", "out"}), rename("d", "d.weight")}).inverse();
  EXPECT_THAT(groups_of(back.from({"a", "d.weight", "other"})), UnorderedElementsAre("a -> a0 a1", "d.weight -> d"));
  EXPECT_THAT(groups_of(back.from({"in"})), ElementsAre("in -> e"));
  EXPECT_THAT(groups_of(back.from({"out"})), IsEmpty()) << "whoever has the first of the tied tensors stores it";
  const StateMap joined = stack({"a0", "a1"}, "a", 0);
  EXPECT_THAT(groups_of(joined.from({"a1"})), IsEmpty());
}

// d9d's golden case: 4 groups over 2 processes are {0, 2} and {1, 3}.
TEST(StateMap, ShardsTakeEveryNthGroup) {
  const StateMap map = identity({"d", "b", "a", "c"});
  EXPECT_THAT(map.shard(2, 0).output_names(), UnorderedElementsAre("a", "c"));
  EXPECT_THAT(map.shard(2, 1).output_names(), UnorderedElementsAre("b", "d"));
  EXPECT_THAT(map.shard(8, 7).output_names(), IsEmpty());
  EXPECT_THAT(error_of([&] { map.shard(2, 2); }), HasSubstr("expected 0 <= shard < 2, found 2"));
}

TEST(StateMap, RefusesNameCollisions) {
  EXPECT_THAT(error_of([] { parallel({rename("a", "b"), rename("a", "c")}); }), HasSubstr("a: would be read twice"));
  EXPECT_THAT(
      error_of([] {
        parallel({rename("a", "c"), rename("b", "c")});
      }),
      HasSubstr("c: would be produced twice"));
  EXPECT_THAT(error_of([] { stack({"a", "a"}, "c", 0); }), HasSubstr("a: would be read twice"));
  EXPECT_THAT(
      error_of([] {
        sequential({rename("a", "b"), rename("a", "c")});
      }),
      HasSubstr("a: would be read twice by a state map: an earlier map of the sequence has read it"));
  EXPECT_THAT(
      error_of([] {
        sequential({rename("a", "x"), rename("b", "x")});
      }),
      HasSubstr("x: would be produced twice"));
}

TEST(StateMap, RefusesInvalidGraphs) {
  const MapStep step{Transpose{}, {0}, {1}};
  auto error =
      [](std::vector<MapPort> inputs, std::vector<MapStep> steps, std::vector<MapPort> outputs, size_t values) {
        return error_of([&] { StateMap(inputs, steps, outputs, values); });
      };
  EXPECT_THAT(error({{"a", 0}}, {step}, {{"b", 0}}, 2), HasSubstr("b: a state map would use value 0 twice"));
  EXPECT_THAT(error({{"a", 0}}, {step}, {{"b", 2}}, 2), HasSubstr("b: a state map would use value 2 twice, or before"));
  EXPECT_THAT(error({{"a", 1}}, {step}, {{"b", 1}}, 2), HasSubstr("transpose 0 1: a state map would use value 0"));
  EXPECT_THAT(
      error({{"a", 0}, {"b", 1}}, {step}, {}, 2), HasSubstr("transpose 0 1: a state map would produce value 1 twice"));
  EXPECT_THAT(error({{"a", 3}}, {}, {}, 2), HasSubstr("a: a state map would produce value 3 twice, or has too few"));
}

TEST(StateMap, RefusesInvalidSizes) {
  EXPECT_THAT(
      error_of([] {
        concatenate({"a", "b"}, "c", 0, {1});
      }),
      HasSubstr("c: concatenate 0 [1]: expected one size for each of 2 tensors"));
  EXPECT_THAT(error_of([] { split("c", {"a", "b"}, 0, {3, -1}); }), HasSubstr("c: split 0 [3, -1]: expected one size"));
  EXPECT_THAT(error_of([] { slice("a", "b", 0, {4, 8}, 7); }), HasSubstr("expected a range within the size"));
  EXPECT_THAT(error_of([] { stack({}, "a", 0); }), HasSubstr("stack 0: expected tensors"));
}

}  // namespace
}  // namespace lehr::state
