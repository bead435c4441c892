// Pruning of models whose layers have one sub-block each (Nemotron-H), in float64.
#include <gmock/gmock.h>

#include "lehr/model/nemotron_h/family.h"
#include "lehr/prune/score_model.h"
#include "test/prune/support.h"

namespace lehr::prune {
namespace {

using testing::all_but;
using testing::error_of;
using testing::families;
using testing::largest_difference;
using testing::layer;
using testing::prune_to;
using testing::scores_of;
using testing::Weights;

constexpr int64_t kKvHeads = 4, kWidth = 32;
constexpr const char* kPattern = "M*-M-";

class OneMixer : public testing::ModelsInFolders {
 protected:
  OneMixer() {
    const auto args = families().from_flavor("nemotron_h", "debugmodel");
    descriptor::ModelOverrides sizes;
    sizes.hidden_size = 24;
    sizes.intermediate_size = kWidth;
    sizes.num_hidden_layers = 5;
    sizes.num_attention_heads = model::test::kHeads;
    sizes.num_key_value_heads = kKvHeads;
    sizes.head_dim = model::test::kHeadDim;
    sizes.vocab_size = model::test::kVocabulary;
    sizes.initializer_range = 0.3;
    args->apply(sizes);
    testing::write_model(at("parent"), to_json(args->to_hf_config("float32")), 7);
  }

  Node config(const std::string& folder) const { return parse_json_file(at(folder) / "config.json"); }
};

TEST_F(OneMixer, ChildrenWithFewerHeadsAndChannelsEqualParentsWithZeroedColumns) {
  const Scores scores = scores_of(Kind::kv_heads, {{}, at::tensor({3., 1., 2., 4.})});
  prune_to(at("parent"), at("heads"), {.kv_heads = 2, .layers = {{1}}}, &scores);
  const Pruning pruning = prune_to(at("heads"), at("child"), {.ffn_width = 12, .by = By::random, .seed = 3});
  expect_same_as([&](Weights& weights) {
    for (const int64_t i : {2, 4}) {
      const std::vector<int64_t> gone = all_but(pruning.layers[static_cast<size_t>(i)].ffn_channels, kWidth);
      weights.at(layer(i, "mlp.down_proj.weight")).index_fill_(-1, at::tensor(gone), 0);
    }
    constexpr int64_t kColumns = model::test::kHeads / kKvHeads * model::test::kHeadDim;  // of a group
    for (const int64_t gone : {1, 2}) {
      weights.at(layer(1, "self_attn.o_proj.weight")).narrow(1, gone * kColumns, kColumns).zero_();
    }
  });
  // Layers of a kind are alike, so transformers reads the child.
  EXPECT_EQ(config("child").find("block_configs"), nullptr);
  EXPECT_EQ(config("child").at("num_key_value_heads").as_int(), 2);
  EXPECT_EQ(config("child").at("intermediate_size").as_int(), 12);
  EXPECT_EQ(config("child").at("hybrid_override_pattern").as_string(), kPattern);
}

TEST_F(OneMixer, ChildrenWithoutSubblocksEqualParentsWithZeroedOutputs) {
  prune_to(at("parent"), at("child"), {.drop_attention_layers = {1, 3}, .drop_ffn_layers = {2}});
  expect_same_as([&](Weights& weights) {
    weights.at(layer(1, "self_attn.o_proj.weight")).zero_();
    weights.at(layer(2, "mlp.down_proj.weight")).zero_();
    weights.at(layer(3, "mamba.out_proj.weight")).zero_();
  });
  const state::WeightReader child(at("child"));
  for (const std::string& name : child.names()) {
    const bool of_a_layer = name.find("layers.") != std::string::npos;
    const bool of_a_kept_one =
        name.find("layers.0.") != std::string::npos || name.find("layers.4.") != std::string::npos;
    EXPECT_TRUE(!of_a_layer || of_a_kept_one) << name;
  }
  EXPECT_TRUE(child.has("backbone.layers.0.norm.weight") && child.has("backbone.layers.4.norm.weight"));
  EXPECT_EQ(config("child").at("block_configs").items().size(), 5U);
}

TEST_F(OneMixer, ScoresEqualTheFormulas) {
  const at::NoGradGuard no_grad;
  const auto model = pretrained::ModelFolder::open(at("parent"), families()).load(at::kCPU, at::kDouble);
  const at::Tensor ids = (at::arange(40) * 7 % model::test::kVocabulary).view({2, 20});
  const auto all = families();
  ModelScorer scorer(*model, all.descriptor("nemotron_h"), 1, {.ffn = FfnMethod::independent});
  scorer.forward({.input_ids = ids}, at::ones({2, 20}, at::kBool));
  const auto scores = scorer.scores();

  const auto weights = testing::weights_of(*model);
  at::Tensor x = weights.at("model.embed_tokens.token_embedding.default.weight").index_select(0, ids.view(-1));
  x = x.view({2, 20, 24});
  int64_t found = 0;
  for (const auto& entry : model->named_modules("", /*include_self=*/false)) {
    auto* one = dynamic_cast<model::NemotronHLayerImpl*>(entry.value().get());
    if (one == nullptr) {
      continue;
    }
    const int64_t index = found++;
    const at::Tensor after = one->forward(x, {});
    const at::Tensor turn = (1 - (x * after).sum(-1) / x.norm(2, -1) / after.norm(2, -1)).mean();
    const Kind kind = kPattern[index] == '-' ? Kind::ffn : Kind::attention;
    ASSERT_TRUE(scores.contains({index, kind})) << index;
    EXPECT_NEAR(scores.at({index, kind}).item<double>(), turn.item<double>(), 1e-12) << index;
    EXPECT_EQ(scores.contains({index, Kind::kv_heads}), kPattern[index] == '*') << index;
    EXPECT_EQ(scores.contains({index, Kind::ffn_channels}), kPattern[index] == '-') << index;
    if (kPattern[index] == '-') {
      const at::Tensor inner = at::relu(one->mlp->up_proj(one->ffn_norm(x))).square();
      const at::Tensor wanted = inner.flatten(0, 1).mean(0) * one->mlp->down_proj->weight.norm(2, 0);
      EXPECT_LT(largest_difference(scores.at({index, Kind::ffn_channels}), wanted), 1e-12);
    }
    x = after;
  }
  EXPECT_EQ(found, 5);
}

TEST_F(OneMixer, RefusesASecondSubblockByName) {
  const auto problem = [&](size_t index, const std::string& block) {
    Node config = this->config("parent");
    Node blocks = Node::make_list();
    const auto own = testing::blocks_of(at("parent"));
    const Node written = descriptor::write_block_configs(own);
    for (size_t i = 0; i < own.size(); ++i) {
      blocks.push_back(i == index ? parse_json(block, "block") : written.items()[i]);
    }
    config.set("block_configs", blocks);
    return error_of([&] { model::nemotron_h_family().from_hf_config(config)->check(""); });
  };
  EXPECT_THAT(
      problem(1, R"({"attention": {"num_key_value_heads": 2}, "ffn": {"intermediate_size": 8}})"),
      ::testing::HasSubstr("block_configs[1].ffn: the layer has one sub-block, attention or Mamba-2"));
  EXPECT_THAT(
      problem(2, R"({"attention": {"num_key_value_heads": 2}, "ffn": {"intermediate_size": 8}})"),
      ::testing::HasSubstr("block_configs[2].attention: the layer has one sub-block, a feed-forward block"));
  EXPECT_THAT(
      problem(0, R"({"attention": {"num_key_value_heads": 2}, "ffn": {"no_op": true}})"),
      ::testing::HasSubstr("the layer has Mamba-2, without KV heads that could be fewer; expected 1, found 2"));
  EXPECT_THAT(
      problem(1, R"({"attention": {"replace_with_linear": true}, "ffn": {"no_op": true}})"),
      ::testing::HasSubstr("models of type nemotron_h do not support replace_with_linear"));
}

}  // namespace
}  // namespace lehr::prune
