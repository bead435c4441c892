// The choice of kept parts by scores, at random or in order; and invalid choices.
#include "lehr/prune/choose.h"

#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "lehr/config/json.h"
#include "test/prune/support.h"

namespace lehr::prune {
namespace {

using descriptor::AttentionSubblock;
using descriptor::BlockConfig;
using descriptor::FFNSubblock;
using descriptor::MoESubblock;
using descriptor::NoOpSubblock;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::scores_of;

const BlockConfig kDense{AttentionSubblock{4}, FFNSubblock{6}};
const BlockConfig kMixture{AttentionSubblock{4}, MoESubblock{4, 2, 3}};
const BlockConfig kHalf{NoOpSubblock{}, FFNSubblock{6}};

TEST(BestOf, KeepsTheHighestScoresInOrder) {
  // puzzletron keeps {1, 2} of these losses, because it takes ranks for scores.
  EXPECT_THAT(best_of({0.9, 0.1, 0.5, 0.2}, 2), ElementsAre(0, 2));
  EXPECT_THAT(best_of({0.1, NAN, -INFINITY, NAN, 0.3}, 3), ElementsAre(0, 2, 4)) << "NaN is lower than all others";
  EXPECT_THAT(best_of({1, 2, 2, 2}, 2), ElementsAre(1, 2)) << "of equal ones the first";
  EXPECT_THAT(best_of({1, 2}, 0), IsEmpty());
}

TEST(Choose, UsesTheScoresOfEachKind) {
  Scores scores = scores_of(Kind::ffn_channels, {at::tensor({1., 9., 2., 8., 3., 7.}), {}});
  scores.values[{0, Kind::kv_heads}] = at::tensor({1., 2., 3., NAN});
  scores.values[{1, Kind::kv_heads}] = at::tensor({4., 3., 2., 1.});
  scores.values[{1, Kind::experts}] = at::tensor({0.9, 0.1, 0.5, 0.2});
  scores.values[{1, Kind::expert_channels}] = at::tensor({1., 2., 3., 0., 0., 0., 3., 1., 2., 0., 0., 0.}).view({4, 3});
  const Pruning pruning =
      choose({.ffn_width = 3, .kv_heads = 2, .experts = 2, .expert_width = 2}, {kDense, kMixture}, &scores);
  EXPECT_THAT(pruning.layers[0].ffn_channels, ElementsAre(1, 3, 5));
  EXPECT_THAT(pruning.layers[0].kv_heads, ElementsAre(1, 2));
  EXPECT_THAT(pruning.layers[0].experts, IsEmpty());
  EXPECT_THAT(pruning.layers[1].kv_heads, ElementsAre(0, 1));
  EXPECT_THAT(pruning.layers[1].experts, ElementsAre(0, 2));
  EXPECT_THAT(pruning.layers[1].expert_channels, ElementsAre(ElementsAre(1, 2), ElementsAre(0, 2)));
  EXPECT_THAT(pruning.layers[1].ffn_channels, IsEmpty());
}

TEST(Choose, KeepsTheChannelsOfSharedExpertsWithTheHighestScores) {
  BlockConfig shared = kMixture;
  std::get<MoESubblock>(shared.ffn).shared_expert_intermediate_dim = 5;
  const Scores scores = scores_of(Kind::shared_channels, {{}, at::tensor({1., 5., 2., 4., 3.}), {}});
  const Pruning pruning = choose({.shared_expert_width = 2}, {kDense, shared, kMixture}, &scores);
  EXPECT_THAT(pruning.layers[1].shared_channels, ElementsAre(1, 3));
  EXPECT_TRUE(pruning.layers[0].keeps_all() && pruning.layers[2].keeps_all());
  const auto problem = [&](int64_t width, const std::vector<BlockConfig>& blocks) {
    return testing::error_of([&] { choose({.shared_expert_width = width, .by = By::first}, blocks); });
  };
  EXPECT_THAT(
      problem(6, {shared}), HasSubstr("layer 0: has 5 channels in the shared expert, so --shared-expert-width"));
  EXPECT_THAT(
      problem(2, {kMixture}), HasSubstr("--shared-expert-width: none of the layers to prune has a shared expert"));
}

TEST(Choose, DropsTheLowestSubblocksOfTheModel) {
  Scores scores = scores_of(Kind::attention, {at::tensor({3.}), at::tensor({1.}), {}, at::tensor({2.})});
  for (int64_t layer = 0; layer < 4; ++layer) {
    scores.values[{layer, Kind::ffn}] = at::tensor({static_cast<double>(layer)});
  }
  const std::vector<BlockConfig> blocks{kDense, kMixture, kHalf, kDense};
  const auto dropped = [](const Pruning& pruning, bool LayerKeeps::*half) {
    std::vector<int> layers;
    for (size_t i = 0; i < pruning.layers.size(); ++i) {
      if (pruning.layers[i].*half) {
        layers.push_back(static_cast<int>(i));
      }
    }
    return layers;
  };
  const Pruning worst = choose({.drop_attention = 2, .drop_ffn = 1}, blocks, &scores);
  EXPECT_THAT(dropped(worst, &LayerKeeps::no_attention), ElementsAre(1, 3)) << "layer 2 has none to lose";
  EXPECT_THAT(dropped(worst, &LayerKeeps::no_ffn), ElementsAre(0));
  const Pruning some = choose({.drop_ffn = 1, .layers = {{1, 3}}}, blocks, &scores);
  EXPECT_THAT(dropped(some, &LayerKeeps::no_ffn), ElementsAre(1));
  const Pruning named = choose({.drop_attention_layers = {3, 0}, .drop_ffn_layers = {2}}, blocks);
  EXPECT_THAT(dropped(named, &LayerKeeps::no_attention), ElementsAre(0, 3));
  EXPECT_THAT(dropped(named, &LayerKeeps::no_ffn), ElementsAre(2));
  const Pruning last = choose({.drop_ffn = 2, .by = By::first}, blocks);
  EXPECT_THAT(dropped(last, &LayerKeeps::no_ffn), ElementsAre(2, 3));
  EXPECT_EQ(dropped(choose({.drop_ffn = 3, .by = By::random}, blocks), &LayerKeeps::no_ffn).size(), 3U);
}

// A dropped sub-block is not cut to the new size.
TEST(Choose, DoesNotCutDroppedSubblocks) {
  const Pruning pruning = choose({.ffn_width = 2, .drop_ffn_layers = {0}, .by = By::first}, {kDense, kDense});
  EXPECT_THAT(pruning.layers[0].ffn_channels, IsEmpty());
  EXPECT_THAT(pruning.layers[1].ffn_channels, ElementsAre(0, 1));
}

TEST(Choose, AtRandomDependsOnTheSeedAndTheLayer) {
  const std::vector<BlockConfig> blocks(8, {AttentionSubblock{4}, FFNSubblock{64}});
  const auto kept = [&](uint64_t seed) { return choose({.ffn_width = 32, .by = By::random, .seed = seed}, blocks); };
  EXPECT_EQ(kept(1).layers, kept(1).layers);
  std::set<std::vector<int64_t>> different;
  for (const uint64_t seed : {1, 2}) {
    for (const LayerKeeps& layer : kept(seed).layers) {
      EXPECT_EQ(layer.ffn_channels.size(), 32U);
      different.insert(layer.ffn_channels);
    }
  }
  EXPECT_EQ(different.size(), 16U);
}

TEST(Choose, InOrderKeepsTheFirst) {
  const Pruning pruning = choose(
      {.ffn_width = 2, .kv_heads = 2, .experts = 3, .expert_width = 1, .layers = {{1, 2}}, .by = By::first},
      {kDense, kMixture, kDense});
  EXPECT_TRUE(pruning.layers[0].keeps_all());
  EXPECT_THAT(pruning.layers[1].experts, ElementsAre(0, 1, 2));
  EXPECT_THAT(pruning.layers[1].expert_channels, ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(0)));
  EXPECT_THAT(pruning.layers[2].ffn_channels, ElementsAre(0, 1));
}

TEST(Choose, RecordsTheOptionsAndTheMethodOfChoice) {
  const std::vector<BlockConfig> blocks{kDense, kDense, kDense};
  const auto facts = [&](const PruneOptions& options, const Scores* scores = nullptr) {
    return to_json(choose(options, blocks, scores).facts);
  };
  EXPECT_EQ(
      facts({.kv_heads = 2, .drop_ffn_layers = {2}, .layers = {{0, 1}}, .average_kv = true}),
      R"({"kv_heads":2,"drop_ffn_layers":[2],"layers":[0,1],"average_kv":true})")
      << "nothing was chosen";
  EXPECT_EQ(
      facts({.ffn_width = 2, .drop_attention_layers = {1}, .by = By::random, .seed = 5}),
      R"({"by":"random","seed":5,"ffn_width":2,"drop_attention_layers":[1]})");
  const Scores scores = scores_of(Kind::attention, {at::ones({1}), at::ones({1}), at::ones({1})});
  EXPECT_EQ(facts({.drop_attention = 1}, &scores), R"({"by":"score","scores":"scores","drop_attention":1})");
  EXPECT_EQ(facts({.drop_attention = 1, .by = By::first}, &scores), R"({"by":"first","drop_attention":1})");
}

// Sub-blocks dropped by name may be outside the layers to which sizes are limited.
TEST(Choose, LimitsSizesAndCountsToSomeLayers) {
  const Pruning pruning = choose(
      {.ffn_width = 2, .drop_attention = 1, .drop_ffn_layers = {0}, .layers = {{1}}, .by = By::first},
      {kDense, kDense, kDense});
  EXPECT_TRUE(pruning.layers[0].no_ffn);
  EXPECT_FALSE(pruning.layers[0].no_attention);
  EXPECT_TRUE(pruning.layers[1].no_attention);
  EXPECT_THAT(pruning.layers[1].ffn_channels, ElementsAre(0, 1));
  EXPECT_TRUE(pruning.layers[2].keeps_all());
}

TEST(Choose, RefusesScoresOfAnotherModel) {
  Scores scores = scores_of(Kind::ffn_channels, {at::ones({6}), at::ones({6})});
  const auto choose_for = [&](size_t layers) {
    choose({.ffn_width = 2, .layers = {{0}}}, std::vector<BlockConfig>(layers, kDense), &scores);
  };
  const auto problem = [&](size_t layers) { return error_of([&] { choose_for(layers); }); };
  EXPECT_THAT(
      problem(1), HasSubstr("scores: has ffn_channels of layer 1, but this model has layers 0 to 0; the scores were"));
  EXPECT_NO_THROW(choose_for(2));
  EXPECT_NO_THROW(choose_for(3)) << "scores of some layers may be missing";
  Node layers = Node::make_list();
  layers.push_back(Node("4 KV heads, FFN 6"));
  layers.push_back(Node("4 KV heads, FFN 6"));
  scores.facts.set("layers", layers);
  EXPECT_NO_THROW(choose_for(2));
  EXPECT_THAT(
      problem(3), HasSubstr("scores: scores of a model of 2 layers, but this one has 3; they were made for another"));
}

TEST(Choose, RefusesImpossibleChoices) {
  const Scores scores = scores_of(Kind::ffn_channels, {at::ones({6}, at::kDouble), at::ones({5}, at::kDouble), {}});
  const auto problem = [&](const PruneOptions& options, std::vector<BlockConfig> blocks = {kDense, kMixture}) {
    return error_of([&] { choose(options, blocks, &scores); });
  };
  const By first = By::first;
  EXPECT_THAT(problem({}), HasSubstr("pruning: nothing to do; set a size (--ffn-width"));
  EXPECT_THAT(problem({.layers = {{0}}}), HasSubstr("nothing to do"));
  EXPECT_THAT(
      problem({.ffn_width = 7, .by = first}),
      HasSubstr("layer 0: has 6 FFN channels, so --ffn-width must be 1 to 6, found 7; --layers can exclude"));
  EXPECT_THAT(
      problem({.kv_heads = 8, .by = first}), HasSubstr("layer 0: has 4 KV heads, so --kv-heads must be 1 to 4"));
  EXPECT_THAT(
      problem({.kv_heads = 3, .by = first}), HasSubstr("layer 0: kv_heads: expected a divisor of the layer's 4"));
  EXPECT_THAT(problem({.kv_heads = 3, .average_kv = true}), HasSubstr("a divisor of the layer's 4"));
  EXPECT_THAT(
      problem({.experts = 1, .by = first}),
      HasSubstr("layer 1: experts: a token is routed to 2, so at least as many must be kept; found 1"));
  EXPECT_THAT(problem({.experts = 5, .by = first}), HasSubstr("layer 1: has 4 experts, so --experts must be 1 to 4"));
  EXPECT_THAT(problem({.expert_width = 4, .by = first}), HasSubstr("layer 1: has 3 channels in each expert"));
  EXPECT_THAT(
      problem({.experts = 2, .by = first}, {kDense}), HasSubstr("--experts: none of the layers to prune has experts"));
  EXPECT_THAT(
      problem({.ffn_width = 2, .layers = {{1}}, .by = first}),
      HasSubstr("--ffn-width: none of the layers to prune has a feed-forward block"));
  EXPECT_THAT(problem({.ffn_width = 2, .layers = {{2}}}), HasSubstr("--layers: the model has layers 0 to 1, but no"));
  EXPECT_THAT(problem({.ffn_width = 2, .layers = {{0, 0}}}), HasSubstr("--layers: names layer 0 twice"));
  EXPECT_THAT(
      problem({.drop_ffn = 3, .by = first}),
      HasSubstr("--drop-ffn: expected 1 to 2, the number of layers that have one"));
  EXPECT_THAT(problem({.drop_attention_layers = {0}}, {kHalf}), HasSubstr("--drop-attention-layers: layer 0 has none"));
  EXPECT_THAT(
      problem({.drop_ffn = 1, .drop_ffn_layers = {0}}),
      HasSubstr("--drop-ffn: expected a number of layers, or --drop-ffn-layers; found both"));
  EXPECT_THAT(problem({.average_kv = true}), HasSubstr("nothing to do"));
  EXPECT_THAT(problem({.ffn_width = 2, .average_kv = true}), HasSubstr("--average-kv: needs --kv-heads"));
  EXPECT_THAT(problem({.kv_heads = 2, .scale_pruned_weights = true}), HasSubstr("--scale-pruned-weights: needs"));
  EXPECT_THAT(problem({.kv_heads = 2, .by = first, .average_kv = true}), HasSubstr("--by: nothing is chosen by it"));
  EXPECT_THAT(problem({.drop_ffn_layers = {0}, .by = By::random}), HasSubstr("--by: nothing is chosen by it"));
  // Errors of scores.
  EXPECT_THAT(problem({.kv_heads = 2}), HasSubstr("scores: has no kv_heads at all; lehr score makes them"));
  EXPECT_THAT(
      problem({.ffn_width = 2}, {kDense, kMixture, kDense}),
      HasSubstr("scores: has no ffn_channels of layer 2; lehr score makes them"));
  EXPECT_THAT(
      problem({.ffn_width = 2}, {kDense, kDense}),
      HasSubstr("scores: layers.1.ffn_channels: expected scores of shape (6) for this model, found (5)"));
  EXPECT_THAT(
      error_of([&] { choose({.ffn_width = 2}, {kDense}); }),
      HasSubstr("ffn_channels: scores are needed; set --scores, or choose --by random or first"));
}

}  // namespace
}  // namespace lehr::prune
