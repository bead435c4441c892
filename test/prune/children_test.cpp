// Children compute the same as their parents with the removed parts zeroed, in float64.
#include <gmock/gmock.h>

#include "lehr/prune/pruned_model.h"
#include "test/prune/support.h"

namespace lehr::prune {
namespace {

using testing::all_but;
using testing::kTolerance;
using testing::largest_difference;
using testing::layer;
using testing::logits_of;
using testing::prune_to;
using testing::scores_of;
using testing::Weights;

void blank_columns(at::Tensor weight, const std::vector<int64_t>& columns) {
  weight.index_fill_(-1, at::tensor(columns), 0);
}

class Children : public testing::ModelsInFolders, public ::testing::WithParamInterface<const char*> {
 protected:
  std::string family() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(
    Families, Children, ::testing::Values("qwen3", "llama", "qwen2", "smollm3", "gemma3_text", "glm4_moe"));

TEST_P(Children, WithFewerChannelsEqualParentsWithZeroedDownColumns) {
  write("parent", family(), {{4, 32}, {4, 32}});
  const Pruning pruning = prune_to(at("parent"), at("child"), {.ffn_width = 12, .by = By::random, .seed = 3});
  expect_same_as([&](Weights& weights) {
    for (int64_t i = 0; i < 2; ++i) {
      const auto& kept = pruning.layers[static_cast<size_t>(i)].ffn_channels;
      blank_columns(weights.at(layer(i, "mlp.down_proj.weight")), all_but(kept, 32));
    }
  });
}

TEST_P(Children, WithScaledWeightsDifferInDownWeightsOnly) {
  write("parent", family(), {{4, 32}});
  prune_to(at("parent"), at("plain"), {.ffn_width = 12, .by = By::first});
  prune_to(at("parent"), at("scaled"), {.ffn_width = 12, .by = By::first, .scale_pruned_weights = true});
  const state::WeightReader plain(at("plain")), scaled(at("scaled"));
  for (const std::string& name : plain.names()) {
    const bool is_down = name.find("down_proj") != std::string::npos;
    const at::Tensor expected =
        is_down ? (plain.tensor(name).to(at::kDouble) * (32.0 / 12)).to(at::kFloat) : plain.tensor(name);
    EXPECT_TRUE(at::equal(scaled.tensor(name), expected)) << name;
  }
}

// Routers that choose among groups find them by the places of experts: 6 experts in 2 groups, of which 1 is chosen.
TEST(PrunedModel, KeepsAsManyExpertsOfEachGroup) {
  const std::string folder = "test/data/reference/glm4_moe_groups";
  const auto families = testing::families();
  const auto blocks = families.from_hf_folder(folder)->block_configs();
  const auto cut = [&](const std::vector<int64_t>& experts) {
    Pruning pruning{.layers = std::vector<LayerKeeps>(blocks.size())};
    for (size_t layer = 0; layer < blocks.size(); ++layer) {
      if (std::holds_alternative<descriptor::MoESubblock>(blocks[layer].ffn)) {
        pruning.layers[layer].experts = experts;
      }
    }
    PrunedModel(folder, pruning, families);
  };
  cut({0, 2, 3, 4});
  EXPECT_THAT(
      testing::error_of([&] {
        cut({0, 1, 2, 3});
      }),
      ::testing::HasSubstr("n_group: the router chooses among 2 groups of experts, of which 3, 1 would be left"));
}

// Qwen3 has norms of queries and keys, Llama has none. Each kept KV head gets 2, 4 or 8 query groups.
TEST_P(Children, WithFewerKVHeadsEqualParentsWithoutTheGroupsOfRemovedHeads) {
  const std::vector<std::pair<int64_t, int64_t>> sizes{{4, 2}, {8, 2}, {8, 1}};
  for (const auto& size : sizes) {
    const int64_t before = size.first, after = size.second;
    const std::string parent = fmt::format("parent{}{}", before, after),
                      child = fmt::format("child{}{}", before, after);
    write(parent, family(), {{before, 32}, {before, 32}});
    const Scores scores = scores_of(
        Kind::kv_heads, {at::arange(before, at::kDouble).fmod(3.0), -at::arange(before, at::kDouble).fmod(3.0)});
    const Pruning pruning = prune_to(at(parent), at(child), {.kv_heads = after}, &scores);
    const int64_t columns = model::test::kHeads / before * model::test::kHeadDim;  // columns of a group
    const at::Tensor without = logits_of(at(parent), [&](Weights& weights) {
      for (int64_t i = 0; i < 2; ++i) {
        for (const int64_t gone : all_but(pruning.layers[static_cast<size_t>(i)].kv_heads, before)) {
          weights.at(layer(i, "self_attn.o_proj.weight")).narrow(1, gone * columns, columns).zero_();
        }
      }
    });
    EXPECT_LT(largest_difference(logits_of(at(child)), without), kTolerance) << before << " to " << after;
    EXPECT_GT(largest_difference(logits_of(at(parent)), without), 1e-6);
    // All queries are kept, so that further training can use those that no longer contribute to the output.
    const auto rows = [&](const std::string& folder) {
      const at::Tensor q = state::WeightReader(at(folder)).tensor(layer(0, "self_attn.q_proj.weight"));
      return std::get<0>(q.select(1, 0).sort());
    };
    EXPECT_TRUE(at::equal(rows(child), rows(parent)));
  }
}

TEST_P(Children, WithAveragedKVHeadsEqualParentsWithIdenticalHeads) {
  write("parent", family(), {{8, 32}, {8, 32}});
  // Heads 0 to 3 are identical, and so are heads 4 to 7.
  change("parent", [](const std::string& name, at::Tensor& value) {
    if (name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos) {
      at::Tensor heads = value.view({2, 4, model::test::kHeadDim, -1});
      heads.copy_(heads.select(1, 0).unsqueeze(1).expand_as(heads).clone());
    }
  });
  prune_to(at("parent"), at("child"), {.kv_heads = 2, .average_kv = true});
  EXPECT_EQ(
      testing::blocks_of(at("child"))[0],
      (descriptor::BlockConfig{descriptor::AttentionSubblock{2}, descriptor::FFNSubblock{32}}));
  EXPECT_LT(largest_difference(logits_of(at("child")), logits_of(at("parent"))), kTolerance);
}

TEST_P(Children, WithoutSubblocksEqualParentsWithZeroedOutputProjections) {
  write("parent", family(), {{4, 32}, {4, 32}, {4, 32}});
  prune_to(at("parent"), at("child"), {.drop_attention_layers = {0, 2}, .drop_ffn_layers = {2}});
  expect_same_as([&](Weights& weights) {
    weights.at(layer(0, "self_attn.o_proj.weight")).zero_();
    weights.at(layer(2, "self_attn.o_proj.weight")).zero_();
    weights.at(layer(2, "mlp.down_proj.weight")).zero_();
  });
}

TEST_P(Children, WithAllCutsCombinedEqualParentsWithAllPartsZeroed) {
  write("parent", family(), {{4, 32}, {8, 16}, {4, 32}});
  const Pruning pruning = prune_to(
      at("parent"),
      at("child"),
      {.ffn_width = 8, .kv_heads = 2, .drop_ffn_layers = {0}, .layers = {{0, 1}}, .by = By::random, .seed = 5});
  expect_same_as([&](Weights& weights) {
    weights.at(layer(0, "mlp.down_proj.weight")).zero_();
    blank_columns(weights.at(layer(1, "mlp.down_proj.weight")), all_but(pruning.layers[1].ffn_channels, 16));
    for (const int64_t i : {0, 1}) {
      const int64_t before = i == 0 ? 4 : 8;
      const int64_t columns = model::test::kHeads / before * model::test::kHeadDim;
      for (const int64_t gone : all_but(pruning.layers[static_cast<size_t>(i)].kv_heads, before)) {
        weights.at(layer(i, "self_attn.o_proj.weight")).narrow(1, gone * columns, columns).zero_();
      }
    }
  });
  EXPECT_EQ(testing::blocks_of(at("child"))[2], testing::blocks_of(at("parent"))[2]);
}

class ChildrenWithExperts : public testing::ModelsInFolders, public ::testing::WithParamInterface<const char*> {
 protected:
  // Layer `index` with attention and experts, and a shared one if the family has them.
  static testing::LayerShape mixture(int64_t index, int64_t width, int64_t experts, int64_t top_k) {
    const int64_t shared = model::test::layers_of(GetParam()).front().shared;
    return {.kv_heads = heads(index), .width = width, .experts = experts, .top_k = top_k, .shared = shared};
  }
  static int64_t heads(int64_t index) { return model::test::has_kv_heads(GetParam(), index) ? 4 : 1; }

  // An MoE layer whose router has a bias that prevents the choice of experts 1 and 4. The biases of the others differ
  // by less than their probabilities: a token's choice depends on the sum, and probabilities grow when there are fewer
  // experts.
  void write_biased(const std::string& name) const {
    write(name, GetParam(), {mixture(0, 8, 6, 2), {heads(1), 32}});
    Node config = parse_json_file(at(name) / "config.json");
    config.set("expert_bias", Node(true));
    write_file_atomically(at(name) / "config.json", to_json(config));
    state::NamedTensors tensors;
    {
      const state::WeightReader reader(at(name));
      for (const std::string& weight : reader.names()) {
        if (weight != kBias) {
          tensors.emplace_back(weight, reader.tensor(weight).clone());
        }
      }
    }
    tensors.emplace_back(kBias, at::tensor({1e-9F, -10.F, 2e-9F, 3e-9F, -10.F, 4e-9F}));
    state::save_safetensors(at(name) / "model.safetensors", tensors);
  }
  static constexpr const char* kBias = "model.layers.0.mlp.gate.e_score_correction_bias";
};
INSTANTIATE_TEST_SUITE_P(
    Families, ChildrenWithExperts, ::testing::Values("qwen3_moe", "glm4_moe", "deepseek_v3", "qwen3_next"));

TEST_P(ChildrenWithExperts, WithoutUnusedExpertsEqualTheParent) {
  write_biased("parent");
  const Scores scores = scores_of(Kind::experts, {at::tensor({5., 1., 4., 3., 0., 2.})});
  const Pruning pruning = prune_to(at("parent"), at("child"), {.experts = 4}, &scores);
  EXPECT_THAT(pruning.layers[0].experts, ::testing::ElementsAre(0, 2, 3, 5));
  EXPECT_LT(largest_difference(logits_of(at("child")), logits_of(at("parent"))), kTolerance);
  const state::WeightReader child(at("child")), parent(at("parent"));
  const at::Tensor kept = at::tensor({0, 2, 3, 5});
  for (const std::string& name : {std::string(kBias), std::string("model.layers.0.mlp.gate.weight")}) {
    EXPECT_TRUE(at::equal(child.tensor(name), parent.tensor(name).index_select(0, kept))) << name;
  }
  EXPECT_TRUE(at::equal(
      child.tensor("model.layers.0.mlp.experts.3.up_proj.weight"),
      parent.tensor("model.layers.0.mlp.experts.5.up_proj.weight")));
  EXPECT_FALSE(child.has("model.layers.0.mlp.experts.4.up_proj.weight"));
}

// Probabilities are normalized over the kept experts, so a child equals a parent whose router never chooses the others.
TEST_P(ChildrenWithExperts, RouteAmongTheKeptExpertsOnly) {
  write_biased("parent");
  const Scores scores = scores_of(Kind::experts, {at::tensor({5., 1., 4., 3., 0., 2.})});
  prune_to(at("parent"), at("child"), {.experts = 3}, &scores);  // keeps 0, 2 and 3
  const at::Tensor child = logits_of(at("child"));
  const at::Tensor never = logits_of(at("parent"), [](Weights& weights) {
    weights.at("model.layers.0.mlp.router.expert_bias").narrow(0, 5, 1).fill_(-10);
  });
  EXPECT_LT(largest_difference(child, never), kTolerance);
  EXPECT_GT(largest_difference(child, logits_of(at("parent"))), 1e-6);
}

TEST_P(ChildrenWithExperts, WithFewerChannelsEqualParentsWithZeroedDownColumns) {
  write("parent", GetParam(), {mixture(0, 8, 6, 2), {heads(1), 32}, mixture(2, 12, 4, 3)});
  const Pruning pruning = prune_to(at("parent"), at("child"), {.expert_width = 3, .by = By::random, .seed = 2});
  const at::Tensor child = logits_of(at("child"));
  const at::Tensor blanked = logits_of(at("parent"), [&](Weights& weights) {
    for (const auto& [index, width] : {std::pair{0, 8}, std::pair{2, 12}}) {
      const auto& channels = pruning.layers[static_cast<size_t>(index)].expert_channels;
      for (size_t expert = 0; expert < channels.size(); ++expert) {
        const at::Tensor down = weights.at(layer(index, "mlp.grouped_experts.down_proj.weight"));
        blank_columns(down[static_cast<int64_t>(expert)], all_but(channels[expert], width));
      }
    }
  });
  EXPECT_LT(largest_difference(child, blanked), kTolerance);
  EXPECT_GT(largest_difference(child, logits_of(at("parent"))), 1e-6);
}

class ChildrenWithSharedExperts : public ChildrenWithExperts {};
INSTANTIATE_TEST_SUITE_P(
    Families, ChildrenWithSharedExperts, ::testing::Values("glm4_moe", "deepseek_v3", "qwen3_next"));

// With all channels the child is the parent, with fewer ones its materialised slice.
TEST_P(ChildrenWithSharedExperts, WithFewerChannelsOfTheseEqualParentsWithZeroedDownColumns) {
  write("parent", GetParam(), {{heads(0), 8, 6, 2, 16}, {heads(1), 32}, {heads(2), 12, 4, 3, 10}});
  prune_to(at("parent"), at("child"), {.shared_expert_width = 10, .layers = {{2}}, .by = By::first});
  EXPECT_TRUE(logits_of(at("child")).equal(logits_of(at("parent")))) << "the layer has ten";
  std::filesystem::remove_all(at("child"));
  const Pruning pruning = prune_to(at("parent"), at("child"), {.shared_expert_width = 6, .by = By::random, .seed = 5});
  expect_same_as([&](Weights& weights) {
    for (const auto& [index, width] : {std::pair{0, 16}, std::pair{2, 10}}) {
      const auto& kept = pruning.layers[static_cast<size_t>(index)].shared_channels;
      ASSERT_EQ(kept.size(), 6U);
      blank_columns(weights.at(layer(index, "mlp.shared_expert.down_proj.weight")), all_but(kept, width));
    }
  });
  EXPECT_TRUE(pruning.layers[1].keeps_all());
  prune_to(
      at("parent"),
      at("scaled"),
      {.shared_expert_width = 6, .by = By::random, .seed = 5, .scale_pruned_weights = true});
  const at::Tensor scaled = logits_of(at("child"), [](Weights& weights) {
    weights.at(layer(0, "mlp.shared_expert.down_proj.weight")).mul_(16.0 / 6);
    weights.at(layer(2, "mlp.shared_expert.down_proj.weight")).mul_(10.0 / 6);
  });
  EXPECT_LT(largest_difference(logits_of(at("scaled")), scaled), 1e-6) << "rounded to float32 in the folder";
}

class OrdinaryChildren : public ChildrenWithExperts {};
INSTANTIATE_TEST_SUITE_P(
    Families,
    OrdinaryChildren,
    ::testing::Values("qwen3_moe", "mixtral", "gpt_oss", "glm4_moe", "minimax_m2", "deepseek_v3", "qwen3_next"));

// The keys of the family have the sizes of a child whose layers are alike, without block_configs.
TEST_P(OrdinaryChildren, HaveTheirSizesInTheKeysOfTheFamily) {
  write("parent", GetParam(), {mixture(0, 8, 6, 2), mixture(1, 8, 6, 2)});
  prune_to(at("parent"), at("child"), {.experts = 3, .by = By::first});
  EXPECT_EQ(parse_json_file(at("child/config.json")).find("block_configs"), nullptr);
  for (const auto& block : testing::blocks_of(at("child"))) {
    EXPECT_EQ(std::get<descriptor::MoESubblock>(block.ffn).num_local_experts, 3);
  }
  EXPECT_TRUE(logits_of(at("child")).isfinite().all().item<bool>()) << "the weights fit";
}

// Sinks go with the heads of their queries; biases and the two rows of a channel with their expert.
using ChildrenOfGptOss = testing::ModelsInFolders;

TEST_F(ChildrenOfGptOss, EqualParentsWithoutTheRemovedParts) {
  const std::vector<std::pair<int64_t, int64_t>> sizes{{4, 6}, {8, 4}};  // KV heads and experts of each layer
  write("parent", "gpt_oss", {{4, 8, 6, 2}, {8, 8, 4, 1}});
  change("parent", [](const std::string& name, at::Tensor& value) {
    if (name.ends_with("bias") || name.ends_with("sinks")) {
      value.copy_(at::linspace(-1, 1, value.numel()).view_as(value));
    }
  });
  const Pruning pruning = prune_to(
      at("parent"), at("child"), {.kv_heads = 2, .experts = 3, .expert_width = 5, .by = By::random, .seed = 6});
  const at::Tensor without = logits_of(at("parent"), [&](Weights& weights) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto& [kv_heads, experts] = sizes[i];
      const LayerKeeps& keeps = pruning.layers[i];
      const auto weight = [&, index = static_cast<int64_t>(i)](const std::string& name) {
        return weights.at(layer(index, name));
      };
      const int64_t columns = model::test::kHeads / kv_heads * model::test::kHeadDim;
      for (const int64_t gone : all_but(keeps.kv_heads, kv_heads)) {
        weight("self_attn.o_proj.weight").narrow(1, gone * columns, columns).zero_();
      }
      for (const int64_t gone : all_but(keeps.experts, experts)) {
        weight("mlp.router.gate.bias").narrow(0, gone, 1).fill_(-1e6);
      }
      for (size_t expert = 0; expert < keeps.experts.size(); ++expert) {
        blank_columns(
            weight("mlp.grouped_experts.down_proj.weight")[keeps.experts[expert]],
            all_but(keeps.expert_channels[expert], 8));
      }
    }
  });
  EXPECT_LT(largest_difference(logits_of(at("child")), without), kTolerance);
  EXPECT_GT(largest_difference(logits_of(at("parent")), without), 1e-6);
}

}  // namespace
}  // namespace lehr::prune
