// Pruning of the experts of models whose layers have one sub-block each (Nemotron-H), in float64. They have no gates.
#include <gmock/gmock.h>

#include "lehr/model/nemotron_h/family.h"
#include "lehr/prune/score_model.h"
#include "test/prune/support.h"

namespace lehr::prune {
namespace {

using testing::all_but;
using testing::families;
using testing::largest_difference;
using testing::layer;
using testing::prune_to;
using testing::scores_of;
using testing::Weights;

constexpr int64_t kExperts = 6, kWidth = 8;
constexpr int64_t kLayer = 2;  // of M*E-

class OneMixerWithExperts : public testing::ModelsInFolders {
 protected:
  OneMixerWithExperts() {
    const auto flavor = families().from_flavor("nemotron_h", "debugmodel_moe");
    descriptor::ModelOverrides sizes;
    sizes.hidden_size = 24;
    sizes.intermediate_size = 20;
    sizes.num_hidden_layers = 4;
    sizes.num_experts = kExperts;
    sizes.num_experts_per_tok = 2;
    sizes.moe_intermediate_size = kWidth;
    sizes.vocab_size = model::test::kVocabulary;
    sizes.initializer_range = 0.3;
    flavor->apply(sizes);
    Node config = flavor->to_hf_config("float32");
    for (const char* key : {"n_group", "topk_group"}) {
      config.set(key, Node(int64_t{1}));
    }
    testing::write_model(at("parent"), to_json(config), 7);
  }
};

TEST_F(OneMixerWithExperts, ChildrenWithFewerExpertsAndChannelsEqualParentsWithoutThem) {
  const Scores scores = scores_of(Kind::experts, {{}, {}, at::tensor({5., 1., 4., 3., 0., 2.})});
  prune_to(at("parent"), at("fewer"), {.experts = 4}, &scores);  // keeps 0, 2, 3 and 5
  const Pruning pruning = prune_to(at("fewer"), at("child"), {.expert_width = 3, .by = By::random, .seed = 2});
  expect_same_as([&](Weights& weights) {
    for (const int64_t gone : {1, 4}) {
      weights.at(layer(kLayer, "mlp.router.expert_bias")).narrow(0, gone, 1).fill_(-10);
    }
    const at::Tensor down = weights.at(layer(kLayer, "mlp.grouped_experts.down_proj.weight"));
    const std::vector<int64_t> kept{0, 2, 3, 5};
    for (size_t expert = 0; expert < kept.size(); ++expert) {
      const std::vector<int64_t> gone = all_but(pruning.layers[2].expert_channels[expert], kWidth);
      down[kept[expert]].index_fill_(-1, at::tensor(gone), 0);
    }
  });
  const Node config = parse_json_file(at("child") / "config.json");
  EXPECT_EQ(config.find("block_configs"), nullptr) << "transformers reads the child";
  EXPECT_EQ(config.at("n_routed_experts").as_int(), 4);
  EXPECT_EQ(config.at("moe_intermediate_size").as_int(), 3);
}

TEST_F(OneMixerWithExperts, ChildrenWithNarrowerSharedExpertsEqualParentsWithZeroedDownColumns) {
  const Pruning pruning = prune_to(at("parent"), at("child"), {.shared_expert_width = 40, .by = By::random, .seed = 3});
  expect_same_as([&](Weights& weights) {
    const at::Tensor down = weights.at(layer(kLayer, "mlp.shared_expert.down_proj.weight"));
    down.index_fill_(-1, at::tensor(all_but(pruning.layers[2].shared_channels, down.size(1))), 0);
  });
  const Node config = parse_json_file(at("child") / "config.json");
  EXPECT_EQ(config.find("block_configs"), nullptr) << "transformers reads the child";
  EXPECT_EQ(config.at("moe_shared_expert_intermediate_size").as_int(), 40);
  EXPECT_EQ(read_pruning(at("child") / "pruning.json", 4).layers, pruning.layers);
}

TEST_F(OneMixerWithExperts, ChildrenWithoutTheirExpertsEqualParentsWithZeroedOutputs) {
  prune_to(at("parent"), at("child"), {.drop_ffn_layers = {2}});
  expect_same_as([&](Weights& weights) {
    for (const std::string block : {"grouped_experts", "shared_expert"}) {
      weights.at(layer(kLayer, "mlp." + block + ".down_proj.weight")).zero_();
    }
  });
  const state::WeightReader child(at("child"));
  for (const std::string& name : child.names()) {
    EXPECT_EQ(name.find("layers.2."), std::string::npos) << name;
  }
}

TEST_F(OneMixerWithExperts, ScoresOfChannelsEqualTheFormula) {
  const at::NoGradGuard no_grad;
  const auto model = pretrained::ModelFolder::open(at("parent"), families()).load(at::kCPU, at::kDouble);
  const at::Tensor ids = (at::arange(40) * 7 % model::test::kVocabulary).view({2, 20});
  const auto all = families();
  ModelScorer scorer(*model, all.descriptor("nemotron_h"), 1, {});
  scorer.forward({.input_ids = ids}, at::ones({2, 20}, at::kBool));
  const auto scores = scorer.scores();
  for (const Kind kind : {Kind::ffn, Kind::experts, Kind::expert_channels, Kind::shared_channels}) {
    EXPECT_TRUE(scores.contains({2, kind}));
  }
  EXPECT_FALSE(scores.contains({3, Kind::experts}));

  at::Tensor x = testing::weights_of(*model).at("model.embed_tokens.token_embedding.default.weight");
  x = x.index_select(0, ids.view(-1)).view({2, 20, 24});
  for (const auto& entry : model->named_modules("", /*include_self=*/false)) {
    auto* one = dynamic_cast<model::NemotronHLayerImpl*>(entry.value().get());
    if (one == nullptr || one->experts.is_empty()) {
      x = one == nullptr ? x : one->forward(x, {});
      continue;
    }
    auto& experts = *one->experts->grouped_experts;
    const at::Tensor tokens = one->ffn_norm(x).view({-1, 24});
    const at::Tensor chosen = one->experts->router(tokens).selected_expert_indices;
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      const at::Tensor own = tokens.index_select(0, (chosen == expert).any(1).nonzero().squeeze(1));
      const at::Tensor inner = own.matmul(experts.up_proj->weight[expert].t()).clamp_min(0).square();
      const at::Tensor wanted = inner.mean(0) * experts.down_proj->weight[expert].norm(2, 0);
      EXPECT_LT(largest_difference(scores.at({2, Kind::expert_channels})[expert], wanted), 1e-12) << expert;
    }
    break;
  }
}

}  // namespace
}  // namespace lehr::prune
