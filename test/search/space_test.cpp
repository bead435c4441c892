#include "lehr/search/space.h"

#include <gmock/gmock.h>

#include "test/search/support.h"

namespace lehr::search {

namespace {
using descriptor::AttentionSubblock;
using descriptor::BlockConfig;
using descriptor::FFNSubblock;
using descriptor::MoESubblock;
using prune::testing::error_of;
using testing::ascending_scores;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<BlockConfig> kDense{
    {.attention = AttentionSubblock{4}, .ffn = FFNSubblock{64}},
    {.attention = descriptor::NoOpSubblock{}, .ffn = FFNSubblock{32}}};
const std::vector<BlockConfig> kExperts{{.attention = AttentionSubblock{2}, .ffn = MoESubblock{8, 2, 32}}};

std::vector<std::string> names(const std::vector<Variant>& variants) {
  std::vector<std::string> all;
  for (const Variant& variant : variants) {
    all.push_back(variant.name);
  }
  return all;
}

SearchSpace space_of(const SpaceConfig& config, const std::vector<BlockConfig>& teacher) {
  return make_space(config, teacher, ascending_scores(teacher));
}

TEST(Space, HasSharesOfALayersOwnSizesByDefault) {
  const SearchSpace space = space_of({}, kDense);
  EXPECT_THAT(names(space[0].attention), ElementsAre("teacher", "kv_heads 2", "kv_heads 1", "linear", "no-op"));
  EXPECT_THAT(
      names(space[0].ffn),
      ElementsAre("teacher", "ffn_width 48", "ffn_width 32", "ffn_width 16", "ffn_width 8", "linear", "no-op"));
  EXPECT_THAT(names(space[1].attention), ElementsAre("teacher"));
  EXPECT_TRUE(space[1].attention[0].is_no_op);
  EXPECT_EQ(std::get<FFNSubblock>(space[0].ffn[2].block.ffn).intermediate_size, 32);
}

TEST(Space, HasThePairsOfExpertsAndWidths) {
  SpaceConfig config;
  config.experts = {4, 2};
  config.expert_widths = {16};
  EXPECT_THAT(
      names(space_of(config, kExperts)[0].ffn),
      ElementsAre(
          "teacher",
          "expert_width 16",
          "experts 4",
          "experts 4, expert_width 16",
          "experts 2",
          "experts 2, expert_width 16",
          "linear",
          "no-op"));
}

TEST(Space, HasFewerExpertsPerTokenIfTheyAreListed) {
  SpaceConfig config;
  config.experts = {4, 1};
  config.expert_widths = {16};
  config.experts_per_token = {1};
  config.ffn_linear = config.ffn_no_op = false;
  const SearchSpace space = space_of(config, kExperts);
  EXPECT_THAT(
      names(space[0].ffn),
      ElementsAre(
          "teacher",
          "experts_per_token 1",
          "expert_width 16",
          "expert_width 16, experts_per_token 1",
          "experts 4",
          "experts 4, experts_per_token 1",
          "experts 4, expert_width 16",
          "experts 4, expert_width 16, experts_per_token 1",
          "experts 1, experts_per_token 1",  // fewer experts than the teacher's tokens use
          "experts 1, expert_width 16, experts_per_token 1"));
  EXPECT_EQ(std::get<MoESubblock>(space[0].ffn.back().block.ffn), (MoESubblock{1, 1, 16}));
  EXPECT_EQ(std::get<MoESubblock>(space[0].ffn[1].block.ffn), (MoESubblock{8, 1, 32}));
  config.experts_per_token = {2};
  EXPECT_THAT(
      error_of([&] { space_of(config, kExperts); }),
      HasSubstr("space.experts_per_token: 2 is smaller than that of no layer; the layers have 2"));
}

TEST(Space, HasNarrowerSharedExpertsIfTheyAreListed) {
  std::vector<BlockConfig> layers = kExperts;
  std::get<MoESubblock>(layers[0].ffn).shared_expert_intermediate_dim = 24;
  SpaceConfig config;
  config.experts = {4};
  config.expert_widths = {16};
  config.shared_expert_widths = {8, 24};
  config.ffn_linear = config.ffn_no_op = false;
  EXPECT_THAT(
      error_of([&] { space_of(config, layers); }),
      HasSubstr("space.shared_expert_widths: 24 is smaller than that of no layer; the layers have 24"));
  config.shared_expert_widths = {8};
  const SearchSpace space = space_of(config, layers);
  EXPECT_THAT(
      names(space[0].ffn),
      ElementsAre(
          "teacher",
          "shared_expert_width 8",
          "expert_width 16",
          "expert_width 16, shared_expert_width 8",
          "experts 4",
          "experts 4, shared_expert_width 8",
          "experts 4, expert_width 16",
          "experts 4, expert_width 16, shared_expert_width 8"));
  EXPECT_EQ(std::get<MoESubblock>(space[0].ffn.back().block.ffn), (MoESubblock{4, 2, 16, 8}));
  EXPECT_THAT(space[0].ffn[1].keeps.shared_channels, ElementsAre(16, 17, 18, 19, 20, 21, 22, 23));
  EXPECT_THAT(
      error_of([&] { space_of(config, kExperts); }),
      HasSubstr("space.shared_expert_widths: 8 is smaller than that of no layer; the layers have none"));
}

TEST(Space, HasWindowsWithAllKVHeadsAndWithFewerIfTheyAreListed) {
  SpaceConfig config;
  config.kv_heads = {1};
  config.windows = {16, 64};
  const SearchSpace space = space_of(config, kDense);
  EXPECT_THAT(
      names(space[0].attention),
      ElementsAre(
          "teacher",
          "window 64",
          "window 16",
          "kv_heads 1",
          "kv_heads 1, window 64",
          "kv_heads 1, window 16",
          "linear",
          "no-op"));
  EXPECT_EQ(std::get<AttentionSubblock>(space[0].attention[2].block.attention), (AttentionSubblock{4, 16}));
  EXPECT_EQ(std::get<AttentionSubblock>(space[0].attention[4].block.attention), (AttentionSubblock{1, 64}));
  EXPECT_EQ(space[0].attention[4].keeps.kv_heads, space[0].attention[3].keeps.kv_heads);
  EXPECT_FALSE(space[0].attention[1].keeps.keeps_all());
  EXPECT_THAT(names(space[1].attention), ElementsAre("teacher")) << "no attention";
  Choice choice = teacher_choice(space);
  choice.attention = {5, 0};
  EXPECT_EQ(prune::child_blocks(pruning_of(space, choice), kDense, ""), blocks_of(space, choice));
}

// By the block config of a layer, or by the model's keys.
TEST(Space, OnlyShrinksTheWindowsOfATeacher) {
  std::vector<BlockConfig> teacher(3, kDense[0]);
  std::get<AttentionSubblock>(teacher[0].attention).window = 32;
  SpaceConfig config;
  config.kv_heads = {1};
  config.windows = {8, 32, 64};
  config.model_windows = {64, 64, 0};
  config.attention_linear = config.attention_no_op = false;
  const SearchSpace space = space_of(config, teacher);
  EXPECT_THAT(names(space[0].attention), ElementsAre("teacher", "window 8", "kv_heads 1", "kv_heads 1, window 8"));
  EXPECT_EQ(std::get<AttentionSubblock>(space[0].attention[2].block.attention), (AttentionSubblock{1, 32})) << "kept";
  EXPECT_THAT(
      names(space[1].attention),
      ElementsAre("teacher", "window 32", "window 8", "kv_heads 1", "kv_heads 1, window 32", "kv_heads 1, window 8"));
  EXPECT_EQ(std::get<AttentionSubblock>(space[1].attention[3].block.attention), (AttentionSubblock{1, 0}));
  EXPECT_EQ(space[2].attention.size(), 8U) << "all three windows";
  config.model_windows = {64, 64, 64};
  EXPECT_THAT(
      error_of([&] { space_of(config, teacher); }),
      HasSubstr("space.windows: 64 is smaller than the window of no layer; the largest has 64 tokens"));
}

TEST(Space, OfALinearSubblockHasOnlyItsRemoval) {
  const std::vector<BlockConfig> teacher{
      kDense[0], {.attention = descriptor::LinearSubblock{}, .ffn = descriptor::LinearSubblock{}}};
  const SearchSpace space = space_of({}, teacher);
  EXPECT_THAT(names(space[1].attention), ElementsAre("teacher", "no-op"));
  EXPECT_THAT(names(space[1].ffn), ElementsAre("teacher", "no-op"));
  EXPECT_EQ(needed_scores({}, {teacher[1]}), std::vector<prune::Kind>());
}

TEST(Space, SmallerVariantsKeepPartsOfLargerOnes) {
  const SearchSpace space = space_of({}, kDense);
  const auto& variants = space[0].ffn;
  for (size_t i = 2; !variants[i].keeps.ffn_channels.empty(); ++i) {
    for (const int64_t channel : variants[i].keeps.ffn_channels) {
      EXPECT_THAT(variants[i - 1].keeps.ffn_channels, ::testing::Contains(channel));
    }
  }
  // Later channels have higher scores.
  EXPECT_THAT(variants[4].keeps.ffn_channels, ElementsAre(56, 57, 58, 59, 60, 61, 62, 63));
}

TEST(Space, MayBeOnlyNoOps) {
  SpaceConfig config;
  config.sizes = false;
  const SearchSpace space = space_of(config, kDense);
  EXPECT_THAT(names(space[0].ffn), ElementsAre("teacher", "no-op"));
  EXPECT_THAT(needed_scores(config, kDense), ::testing::IsEmpty());
  config.attention_no_op = config.ffn_no_op = false;
  EXPECT_THAT(error_of([&] { space_of(config, kDense); }), HasSubstr("space: there is nothing to choose from"));
}

TEST(Space, RefusesSizesByTheirKeys) {
  SpaceConfig config;
  config.kv_heads = {3};
  EXPECT_THAT(
      error_of([&] { space_of(config, kDense); }),
      HasSubstr("space.kv_heads: 3 does not divide the 4 KV heads of layer 0"));
  config = {};
  config.ffn_widths = {16, 64};
  EXPECT_THAT(
      error_of([&] { space_of(config, kDense); }),
      HasSubstr("space.ffn_widths: 64 is smaller than that of no layer; the layers have 32, 64"));
  config = {};
  config.experts = {1};
  EXPECT_THAT(
      error_of([&] { space_of(config, kExperts); }),
      HasSubstr("space.experts: 1 are fewer than the 2 experts of each token in layer 0"));
}

TEST(Space, AChoiceIsAPruningAndItsBlocks) {
  const SearchSpace space = space_of({}, kDense);
  Choice choice = teacher_choice(space);
  EXPECT_EQ(blocks_of(space, choice), kDense);
  choice.attention = {2, 0};
  choice.ffn = {6, 1};
  const auto pruning = pruning_of(space, choice);
  EXPECT_EQ(prune::child_blocks(pruning, kDense, ""), blocks_of(space, choice));
  EXPECT_THAT(pruning.layers[0].kv_heads, ElementsAre(3));
  EXPECT_TRUE(pruning.layers[0].no_ffn);
  choice.attention = {3, 0};
  choice.ffn = {5, 4};
  EXPECT_EQ(prune::child_blocks(pruning_of(space, choice), kDense, ""), blocks_of(space, choice));
  EXPECT_TRUE(blocks_of(space, choice)[0].attention_is_linear() && blocks_of(space, choice)[1].ffn_is_linear());
}
}  // namespace

}  // namespace lehr::search
