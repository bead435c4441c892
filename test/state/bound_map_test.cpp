// State maps with shapes: inferred shapes, errors, the printed table, and the time for a model of a trillion
// parameters.
#include "lehr/state/bound_map.h"

#include <gmock/gmock.h>

#include <ctime>

#include "test/state/support.h"

namespace lehr::state {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

TensorSpec f32(std::vector<int64_t> shape) {
  return {.shape = std::move(shape), .dtype = DType::kF32};
}

std::vector<int64_t> shape_of(const BoundMap& map, const std::string& name) {
  return map.spec(map.output_value(name)).shape;
}

TEST(BoundMap, InfersShapesAndTypesWithoutData) {
  const StateMap map = parallel({
      stack({"a0", "a1"}, "a", -1),
      unstack("b", {"b0", "b1"}, 0),
      concatenate({"c0", "c1"}, "c", 1, {2, 4}),
      split("d", {"d0", "d1"}, -1, {1, 3}),
      transpose("e", "e.T", 0, -1),
      squeeze("f", "f.s", 1),
      unsqueeze("g", "g.u", -1),
      slice("h", "h.s", 0, {2, 5}, 6),
      tie("i", {"i0", "i1"}),
  });
  const BoundMap bound(
      map,
      {{"a0", f32({2, 3})},
       {"a1", f32({2, 3})},
       {"b", f32({2, 5})},
       {"c0", f32({3, 2})},
       {"c1", f32({3, 4})},
       {"d", f32({2, 4})},
       {"e", f32({2, 3, 4})},
       {"f", f32({2, 1, 3})},
       {"g", f32({2, 3})},
       {"h", {{6, 2}, DType::kBF16}},
       {"i", f32({7})}});
  EXPECT_THAT(shape_of(bound, "a"), ElementsAre(2, 3, 2));
  EXPECT_THAT(shape_of(bound, "b1"), ElementsAre(5));
  EXPECT_THAT(shape_of(bound, "c"), ElementsAre(3, 6));
  EXPECT_THAT(shape_of(bound, "d1"), ElementsAre(2, 3));
  EXPECT_THAT(shape_of(bound, "e.T"), ElementsAre(4, 3, 2));
  EXPECT_THAT(shape_of(bound, "f.s"), ElementsAre(2, 3));
  EXPECT_THAT(shape_of(bound, "g.u"), ElementsAre(2, 3, 1));
  EXPECT_THAT(shape_of(bound, "h.s"), ElementsAre(3, 2));
  EXPECT_EQ(bound.spec(bound.output_value("h.s")).dtype, DType::kBF16);
  EXPECT_THAT(shape_of(bound, "i1"), ElementsAre(7));
  // The inverse returns the inputs; of a sliced tensor, the part.
  const BoundMap back(map.inverse(), bound.output_specs());
  for (const char* name : {"a0", "b", "c1", "d", "e", "f", "g", "h", "i"}) {
    for (const MapPort& port : map.inputs()) {
      if (port.name == name) {
        EXPECT_EQ(back.spec(back.output_value(name)), bound.spec(port.value)) << name;
      }
    }
  }
  EXPECT_EQ(describe(back.known(back.output_value("h"))), "[2:5, 0:2]");
}

TEST(BoundMap, NamesTheTensorThatDoesNotFit) {
  auto error = [](const StateMap& map, const TensorSpecs& specs) { return error_of([&] { BoundMap(map, specs); }); };
  EXPECT_EQ(error(rename("a", "b"), {}), "a: a state map reads it, but there is no such tensor");
  EXPECT_EQ(
      error(stack({"a", "b"}, "c", 0), {{"a", f32({2})}, {"b", f32({3})}}),
      "b (F32 [3]): stack 0: does not match a (F32 [2])");
  EXPECT_EQ(
      error(stack({"a", "b"}, "c", 0), {{"a", f32({2})}, {"b", {{2}, DType::kBF16}}}),
      "b (BF16 [2]): stack 0: does not match a (F32 [2])");
  EXPECT_EQ(
      error(concatenate({"a", "b"}, "c", 0, {2, 2}), {{"a", f32({2, 4})}, {"b", f32({3, 4})}}),
      "b (F32 [3, 4]): concatenate 0 [2, 2]: expected size 2 in dimension 0");
  EXPECT_EQ(
      error(split("a", {"b", "c"}, 1, {2, 2}), {{"a", f32({4, 5})}}),
      "a (F32 [4, 5]): split 1 [2, 2]: expected size 4 in dimension 1");
  EXPECT_EQ(error(unstack("a", {"b", "c"}, 0), {{"a", f32({3})}}), "a (F32 [3]): unstack 0: expected 2 of them");
  EXPECT_EQ(error(squeeze("a", "b", 0), {{"a", f32({3})}}), "a (F32 [3]): squeeze 0: expected size 1 in dimension 0");
  EXPECT_EQ(
      error(transpose("a", "b", 0, 2), {{"a", f32({3, 4})}}),
      "a (F32 [3, 4]): transpose 0 2: expected a dimension from -2 to 1");
  EXPECT_EQ(
      error(slice("a", "b", 0, {1, 2}, 4), {{"a", f32({3})}}),
      "a (F32 [3]): slice 0 [1:2 of 4]: expected size 4 in dimension 0");
  EXPECT_EQ(
      error(sequential({transpose("a", "t", 0, 1), squeeze("t", "b", 0)}), {{"a", f32({3, 4})}}),
      "derived from a (F32 [4, 3]): squeeze 0: expected size 1 in dimension 0");
  EXPECT_THAT(
      error(
          sequential({slice("b", "a", 0, {0, 1}, 2).inverse(), stack({"b", "c"}, "d", 0)}),
          {{"a", f32({1})}, {"c", f32({2})}}),
      HasSubstr("stack 0: is known only partially ([0:1]), so it cannot be joined"));
  // A tensor of rank 0.
  EXPECT_THAT(error(unstack("a", {"b"}, 0), {{"a", f32({})}}), HasSubstr("expected a dimension from 0 to -1"));
}

TEST(BoundMap, PrintsAsATable) {
  const StateMap map = parallel(
      {identity({"norm"}),
       rename("mlp.gate", "mlp.router.gate"),
       split("gate_up", {"gate", "up"}, 1, {2, 2}),
       stack({"e0", "e1", "e2", "e3", "e4"}, "experts", 0)});
  TensorSpecs specs{{"norm", {{8}, DType::kBF16}}, {"mlp.gate", f32({3, 8})}, {"gate_up", f32({3, 4, 8})}};
  for (int i = 0; i < 5; ++i) {
    specs["e" + std::to_string(i)] = f32({2, 8});
  }
  const BoundMap bound(map, specs);
  EXPECT_EQ(
      format_table(bound, {.rows_per_group = 3}),
      "norm        BF16 8         as it is        norm             8\n"
      "mlp.gate    F32 3 x 8      rename          mlp.router.gate  3 x 8\n"
      "gate_up     F32 3 x 4 x 8  split 1 [2, 2]  gate             3 x 2 x 8\n"
      "                                           up               3 x 2 x 8\n"
      "e0          F32 2 x 8      stack 0         experts          5 x 2 x 8\n"
      "e1          F32 2 x 8\n"
      "... 2 more\n"
      "e4          F32 2 x 8\n");
  EXPECT_THAT(format_table(bound), HasSubstr("e3"));
}

// The layers of an MoE model with the experts of Kimi K2: 61 layers of 384 experts.
struct Mixture {
  int64_t layers;
  int64_t experts;
  bool fused;
  static constexpr int64_t kHidden = 7168;
  static constexpr int64_t kInner = 2048;

  std::string layer(int64_t i) const { return fmt::format("model.layers.{}.", i); }
  std::string expert(int64_t i, int64_t e, const char* projection) const {
    return fmt::format("{}mlp.experts.{}.{}_proj.weight", layer(i), e, projection);
  }
  TensorSpecs specs() const {
    TensorSpecs all;
    for (int64_t i = 0; i < layers; ++i) {
      all[layer(i) + "mlp.gate.weight"] = {{experts, kHidden}, DType::kBF16};
      if (fused) {
        all[layer(i) + "mlp.experts.gate_up_proj"] = {{experts, 2 * kInner, kHidden}, DType::kBF16};
        all[layer(i) + "mlp.experts.down_proj"] = {{experts, kHidden, kInner}, DType::kBF16};
        continue;
      }
      for (int64_t e = 0; e < experts; ++e) {
        all[expert(i, e, "gate")] = all[expert(i, e, "up")] = {{kInner, kHidden}, DType::kBF16};
        all[expert(i, e, "down")] = {{kHidden, kInner}, DType::kBF16};
      }
    }
    return all;
  }
  StateMap map() const {
    std::vector<StateMap> parts;
    for (int64_t i = 0; i < layers; ++i) {
      const std::string ours = layer(i) + "mlp.grouped_experts.";
      parts.push_back(rename(layer(i) + "mlp.gate.weight", layer(i) + "mlp.router.gate.weight"));
      if (fused) {
        parts.push_back(split(
            layer(i) + "mlp.experts.gate_up_proj",
            {ours + "gate_proj.weight", ours + "up_proj.weight"},
            1,
            {kInner, kInner}));
        parts.push_back(rename(layer(i) + "mlp.experts.down_proj", ours + "down_proj.weight"));
        continue;
      }
      for (const char* projection : {"gate", "up", "down"}) {
        std::vector<std::string> sources;
        for (int64_t e = 0; e < experts; ++e) {
          sources.push_back(expert(i, e, projection));
        }
        parts.push_back(stack(sources, ours + projection + "_proj.weight", 0));
      }
    }
    return parallel(parts);
  }
};

class Trillion : public ::testing::TestWithParam<bool> {};

TEST_P(Trillion, IsMappedInUnderASecondWithoutData) {
  const Mixture mixture{.layers = 61, .experts = 384, .fused = GetParam()};
  const TensorSpecs specs = mixture.specs();
  const std::clock_t start = std::clock();  // CPU time, so that the load of the machine does not matter
  const BoundMap bound(mixture.map(), specs);
  const auto groups = bound.map().groups();
  const std::string table = format_table(bound, {.rows_per_group = 3});
  const BoundMap back(bound.map().inverse(), bound.output_specs());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;

  EXPECT_EQ(bound.map().inputs().size(), GetParam() ? 61 * 3 : 61 * (384 * 3 + 1));
  EXPECT_EQ(bound.map().outputs().size(), 61 * 4);
  EXPECT_EQ(groups.size(), GetParam() ? 61 * 3 : 61 * 4);
  int64_t parameters = 0;
  for (const TensorInfo& info : bound.outputs()) {
    parameters += num_elements(info.shape, info.name);
  }
  EXPECT_EQ(parameters, int64_t{61} * 384 * (3 * 2048 * 7168 + 7168)) << "1.03 trillion";
  for (const auto& [name, spec] : back.output_specs()) {
    EXPECT_EQ(spec, specs.at(name)) << name;
  }
  EXPECT_THAT(table, HasSubstr("model.layers.60.mlp.grouped_experts.down_proj.weight"));
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_LT(seconds, 1.0);
}

// Ten times the experts, and ten times the layers: at most ten times the work, counted in moves and look-ups, not in
// seconds.
TEST_P(Trillion, NeedsWorkInProportionToItsTensors) {
  auto work = [](int64_t layers, int64_t experts) {
    const Mixture mixture{.layers = layers, .experts = experts, .fused = GetParam()};
    const StateMap map = mixture.map();
    return sequential({map, map.inverse(), map}).work();
  };
  EXPECT_LE(work(61, 384), 10.5 * static_cast<double>(work(61, 38))) << "384 are 10.1 times 38";
  EXPECT_LE(work(610, 38), 10.5 * static_cast<double>(work(61, 38)));
  EXPECT_GT(work(610, 38), 9 * work(61, 38)) << "or nothing was counted";
}

INSTANTIATE_TEST_SUITE_P(BothLayouts, Trillion, ::testing::Bool(), [](const auto& param) {
  return param.param ? "Fused" : "PerExpert";
});

}  // namespace
}  // namespace lehr::state
