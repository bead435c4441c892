// Cuts of single parameters: boxes of a child are parts of the whole child, and each parameter gets the right cut.
#include "lehr/prune/parameter_cut.h"

#include <gmock/gmock.h>

#include "lehr/prune/layer_cuts.h"
#include "test/train/written_model.h"

namespace lehr::prune {
namespace {

using descriptor::AttentionSubblock;
using descriptor::BlockConfig;
using descriptor::FFNSubblock;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using train::testing::error_of;

constexpr int64_t kNone = Pick::kZeros;

at::Tensor whole(const ParameterCut& cut, const at::Tensor& parent) {
  return apply(cut, whole_box(shape_after(cut, parent.sizes().vec())), parent.scalar_type(), [&](const Box& box) {
    return narrow_to(parent, box);
  });
}

// Every box of the child, including empty ones, is that part of the child; `expected` is computed in ATen.
void expect_made(const ParameterCut& cut, const at::Tensor& parent, const at::Tensor& expected) {
  EXPECT_EQ(shape_after(cut, parent.sizes().vec()), expected.sizes().vec());
  EXPECT_TRUE(at::equal(whole(cut, parent), expected));
  const auto read = [&](const Box& box) { return narrow_to(parent, box); };
  Box box = whole_box(expected.sizes().vec());
  for (size_t dim = 0; dim < box.size(); ++dim) {
    const Range all = box[dim];
    for (int64_t begin = 0; begin <= all.end; ++begin) {
      for (int64_t end = begin; end <= all.end; ++end) {
        box[dim] = {begin, end};
        const at::Tensor part = apply(cut, box, parent.scalar_type(), read);
        EXPECT_TRUE(at::equal(part, narrow_to(expected, box))) << describe(box);
      }
    }
    box[dim] = all;
  }
}

TEST(ParameterCut, PicksIndicesAndFillsGapsWithZeros) {
  const at::Tensor parent = at::arange(20, at::kBFloat16).view({5, 4});
  expect_made({.how = Pick{0, {3, 0, 4}}}, parent, parent.index_select(0, at::tensor({3, 0, 4})));
  at::Tensor columns = parent.index_select(1, at::tensor({2, 0, 0, 1}));
  columns.select(1, 1).zero_();
  columns.select(1, 2).zero_();
  expect_made({.how = Pick{1, {2, kNone, kNone, 1}}}, parent, columns);
  expect_made({.how = Pick{0, {4, 1}}}, at::arange(5, at::kDouble), at::tensor({4., 1.}));
}

TEST(ParameterCut, PicksExpertsAndTheirOwnChannels) {
  const at::Tensor parent = at::arange(24).view({4, 3, 2});
  expect_made({.how = PickOfExperts{.experts = {1, 3}}}, parent, parent.index_select(0, at::tensor({1, 3})));
  expect_made(
      {.how = PickOfExperts{.experts = {0, 2}, .dim = 1, .channels = {{0, 2}, {1, 2}}}},
      parent,
      at::stack({parent[0].index_select(0, at::tensor({0, 2})), parent[2].index_select(0, at::tensor({1, 2}))}));
  expect_made(
      {.how = PickOfExperts{.experts = {3}, .dim = 2, .channels = {{1}}}}, parent, parent.narrow(0, 3, 1).slice(2, 1));
}

TEST(ParameterCut, AveragesBlocksOfRows) {
  // Blocks of two rows, three blocks averaged to one: sums of exact binary fractions.
  const at::Tensor parent = (at::arange(24, at::kFloat) * 3).view({12, 2});
  expect_made({.how = Average{.block = 2, .count = 3}}, parent, parent.view({2, 3, 2, 2}).mean(1).view({4, 2}));
}

TEST(ParameterCut, MultipliesInFloat64) {
  const at::Tensor parent = at::tensor({1.0, 3.0}).to(at::kBFloat16);
  const at::Tensor expected = (parent.to(at::kDouble) * (7.0 / 3)).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(whole({.how = Pick{0, {0, 1}}, .factor = 7.0 / 3}, parent), expected));
}

TEST(QueryGroups, FollowTheGroupWhoseHeadTheyUse) {
  EXPECT_THAT(query_groups({1, 2}, 4), ElementsAre(1, 0, 2, 3));
  EXPECT_THAT(query_groups({0, 7}, 8), ElementsAre(0, 1, 2, 3, 7, 4, 5, 6));
  EXPECT_THAT(query_groups({2}, 3), ElementsAre(2, 0, 1));
  EXPECT_THAT(query_groups({0, 1, 2}, 3), ElementsAre(0, 1, 2));
}

// Four KV heads of two elements and one query head each; {1, 2} are kept.
TEST(LayerCuts, OfAttentionMoveQueriesWithTheirBiasesAndKeepTheOutputBias) {
  const BlockConfig block{AttentionSubblock{4}, FFNSubblock{6}};
  const LayerKeeps keeps{.kv_heads = {1, 2}};
  const auto indices = [&](const char* name, std::vector<int64_t> shape) {
    return std::get<Pick>(cut_of(name, shape, keeps, block, {})->how).indices;
  };
  for (const char* name : {"self_attn.q_proj.bias", "self_attn.q_proj.weight"}) {
    EXPECT_THAT(indices(name, {8, 3}), ElementsAre(2, 3, 0, 1, 4, 5, 6, 7)) << name;
  }
  for (const char* name : {"self_attn.k_proj.bias", "self_attn.v_proj.bias", "self_attn.k_proj.weight"}) {
    EXPECT_THAT(indices(name, {8}), ElementsAre(2, 3, 4, 5)) << name;
  }
  EXPECT_THAT(indices("self_attn.o_proj.weight", {3, 8}), ElementsAre(2, 3, kNone, kNone, 4, 5, kNone, kNone));
  for (const char* name : {"self_attn.o_proj.bias", "self_attn.q_norm.weight", "self_attn.k_norm.weight"}) {
    EXPECT_FALSE(cut_of(name, {3}, keeps, block, {}).has_value()) << name;
  }
  // A norm over the full width has a weight per row of its projection.
  const CutRules full{.qk_norm_width = nn::QKNormWidth::full};
  const auto rows_of_norm = [&](const char* name) {
    return std::get<Pick>(cut_of(name, {8}, keeps, block, full)->how).indices;
  };
  EXPECT_THAT(rows_of_norm("self_attn.q_norm.weight"), ElementsAre(2, 3, 0, 1, 4, 5, 6, 7));
  EXPECT_THAT(rows_of_norm("self_attn.k_norm.weight"), ElementsAre(2, 3, 4, 5));
  const LayerKeeps averaged{.averaged_kv_heads = 2};
  EXPECT_FALSE(cut_of("self_attn.q_norm.weight", {8}, averaged, block, full).has_value());
  EXPECT_EQ(std::get<Average>(cut_of("self_attn.k_norm.weight", {8}, averaged, block, full)->how).block, 2);
  EXPECT_THAT(
      error_of([&] { cut_of("self_attn.temperature", {4}, keeps, block, {}); }),
      HasSubstr("self_attn.temperature: pruning does not know this parameter"));
  EXPECT_FALSE(cut_of("self_attn.temperature", {4}, {.ffn_channels = {1}}, block, {}).has_value());
}

}  // namespace
}  // namespace lehr::prune
