// Linear layers in place of sub-blocks: their weights are the products of the parent's, in float64.
#include "lehr/prune/linear_product.h"

#include "lehr/prune/pruned_model.h"
#include "test/prune/support.h"

namespace lehr::prune {
namespace {

using model::test::kHeadDim;
using model::test::kHeads;
using model::test::kMixtures;
using testing::blocks_of;
using testing::error_of;
using testing::families;
using ::testing::HasSubstr;
using testing::largest_difference;
using testing::Weights;
using testing::weights_of;

Pruning pruning_of(const std::vector<LayerKeeps>& layers) {
  return {.layers = layers};
}

Weights weights_in(const std::filesystem::path& folder) {
  Weights weights;
  const state::WeightReader reader(folder);
  for (const std::string& name : reader.names()) {
    weights[name] = reader.tensor(name).to(at::kDouble);
  }
  return weights;
}

class LinearSubblocks : public testing::ModelsInFolders, public ::testing::WithParamInterface<const char*> {
 protected:
  void write_child(const std::vector<LayerKeeps>& layers) const {
    write_pruned({.model = at("parent"), .output = at("child")}, pruning_of(layers), families());
  }
  at::Tensor logits(const std::string& name, const at::Tensor& ids) const {
    const at::NoGradGuard no_grad;
    const auto model = pretrained::ModelFolder::open(at(name), families()).load(at::kCPU, at::kDouble);
    return model->logits(model->forward({.input_ids = ids}).hidden_states);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Families,
    LinearSubblocks,
    ::testing::Values("qwen3", "llama", "olmo2", "olmo3", "gemma3_text", "mixtral", "minimax_m2", "glm4_moe"));

// A token without others before it attends to itself only.
TEST_P(LinearSubblocks, InPlaceOfAttentionEqualItForTheFirstToken) {
  const bool mixtures = GetParam() == std::string("mixtral") || GetParam() == std::string("minimax_m2");
  using Shape = testing::LayerShape;
  write(
      "parent",
      GetParam(),
      mixtures ? std::vector{Shape{2, 8, 4, 2}, Shape{8, 8, 4, 2}} : std::vector{Shape{2, 32}, Shape{8, 16}});
  write_child({{.linear_attention = true}, {.linear_attention = true}});
  const at::Tensor first = at::arange(6).view({6, 1});
  // The products are rounded to the float32 of the parent's files.
  const at::Tensor wanted = logits("parent", first);
  EXPECT_LT(largest_difference(logits("child", first), wanted), 1e-6 * wanted.abs().max().item<double>());
  const at::Tensor more = first.view({1, 6});
  EXPECT_GT(largest_difference(logits("child", more), logits("parent", more)), 1e-3) << "others have to matter";
}

TEST_P(LinearSubblocks, InPlaceOfAttentionAreTheProductOfEachHead) {
  const bool mixtures = GetParam() == std::string("mixtral") || GetParam() == std::string("minimax_m2");
  constexpr int64_t kKeyHeads = 4;
  write(
      "parent", GetParam(), {mixtures ? testing::LayerShape{kKeyHeads, 8, 4, 2} : testing::LayerShape{kKeyHeads, 32}});
  write_child({{.linear_attention = true}});
  const auto parent = weights_in(at("parent")), child = weights_in(at("child"));
  const at::Tensor o = parent.at("model.layers.0.self_attn.o_proj.weight");
  const at::Tensor v = parent.at("model.layers.0.self_attn.v_proj.weight");
  at::Tensor sum = at::zeros({o.size(0), v.size(1)}, at::kDouble);
  for (int64_t head = 0; head < kHeads; ++head) {
    sum += at::matmul(
        o.narrow(1, head * kHeadDim, kHeadDim), v.narrow(0, head / (kHeads / kKeyHeads) * kHeadDim, kHeadDim));
  }
  EXPECT_LT(
      largest_difference(child.at("model.layers.0.self_attn.linear_attn.weight"), sum),
      1e-6 * sum.abs().max().item<double>());
  EXPECT_FALSE(child.contains("model.layers.0.self_attn.v_proj.weight"));
  for (const auto& [name, tensor] : child) {
    EXPECT_TRUE(name.find("linear_attn") != std::string::npos || at::equal(tensor, parent.at(name))) << name;
  }
}

class LinearFeedForward : public testing::ModelsInFolders {
 protected:
  // The child's parameters in float64, and what its linear layer in `layer` should be.
  void expect_weight(int64_t layer, const at::Tensor& wanted) const {
    std::vector<LayerKeeps> layers(blocks_of(at("parent")).size());
    layers[static_cast<size_t>(layer)].linear_ffn = true;
    const PrunedModel child(at("parent"), pruning_of(layers), families());
    const std::string name = fmt::format("model.layers.{}.mlp.linear_mlp.weight", layer);
    const std::vector<int64_t> shape = wanted.sizes().vec();
    ASSERT_EQ(child.specs().at(name).shape, shape);
    EXPECT_LT(largest_difference(child.read(name, whole_box(shape)), wanted), 1e-6 * wanted.abs().max().item<double>());
    // A rank reads its part only.
    const Box part{{3, 17}, {5, 6}};
    EXPECT_LT(
        largest_difference(child.read(name, part), narrow_to(wanted, part)), 1e-6 * wanted.abs().max().item<double>());
    for (const auto& [other, spec] : child.specs()) {
      EXPECT_TRUE(!other.starts_with(fmt::format("model.layers.{}.mlp.", layer)) || other == name) << other;
    }
  }
  Weights parent() const {
    Weights weights;
    const auto model = pretrained::ModelFolder::open(at("parent"), families()).load(at::kCPU, at::kDouble);
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      weights[name] = parameter->value().detach();
    }
    return weights;
  }
};

TEST_F(LinearFeedForward, IsTheProductWithoutTheGate) {
  write("parent", "qwen3", {{4, 32}, {4, 16}});
  const Weights w = parent();
  expect_weight(1, at::matmul(w.at("model.layers.1.mlp.down_proj.weight"), w.at("model.layers.1.mlp.up_proj.weight")));
}

TEST_F(LinearFeedForward, OfExpertsIsTheMeanOfTheirProducts) {
  write("parent", "qwen3_moe", kMixtures);
  const Weights w = parent();
  const std::string experts = "model.layers.2.mlp.grouped_experts.";
  expect_weight(
      2, at::einsum("ehi,eij->ehj", {w.at(experts + "down_proj.weight"), w.at(experts + "up_proj.weight")}).mean(0));
}

TEST_F(LinearFeedForward, OfGptOssUsesTheRowsThatAreNoGate) {
  write("parent", "gpt_oss", {{4, 8, 6, 2}});
  const Weights w = parent();
  const std::string experts = "model.layers.0.mlp.grouped_experts.";
  const at::Tensor up = w.at(experts + "gate_up_proj.weight").view({6, 8, 2, -1}).select(2, 1);
  expect_weight(0, at::einsum("ehi,eij->ehj", {w.at(experts + "down_proj.weight"), up}).mean(0));
}

TEST_F(LinearFeedForward, IsInTheRecordOfTheChild) {
  write("parent", "qwen3_moe", kMixtures);
  const std::vector<LayerKeeps> layers{
      {.linear_ffn = true}, {.linear_attention = true}, {.experts_per_token = 1}, {}, {.no_attention = true}};
  write_pruned({.model = at("parent"), .output = at("child")}, pruning_of(layers), families());
  EXPECT_EQ(read_pruning(at("child") / kPruningFile, 5).layers, layers);
  const auto blocks = blocks_of(at("child")), before = blocks_of(at("parent"));
  EXPECT_TRUE(blocks[0].ffn_is_linear());
  EXPECT_EQ(blocks[0].attention, before[0].attention);
  EXPECT_TRUE(blocks[1].attention_is_linear());
  EXPECT_EQ(std::get<descriptor::MoESubblock>(blocks[2].ffn).num_experts_per_tok, 1);
  const auto model = pretrained::ModelFolder::open(at("child"), families()).load(at::kCPU, at::kDouble);
  EXPECT_TRUE(model->forward({.input_ids = at::arange(6).view({1, 6})}).hidden_states.isfinite().all().item<bool>());
}

// Beside fewer KV heads, and smaller than the window that the layer has already.
TEST_F(LinearFeedForward, AWindowIsInTheRecordToo) {
  write("parent", "gemma3_text", {{4, 32}, {4, 32}, {4, 32, 0, 0, 0, 6}});
  const std::vector<LayerKeeps> layers{{.window = 2}, {.kv_heads = {1, 3}, .window = 5}, {.window = 4}};
  write_pruned({.model = at("parent"), .output = at("child")}, pruning_of(layers), families());
  EXPECT_EQ(read_pruning(at("child") / kPruningFile, 3).layers, layers);
  const auto blocks = blocks_of(at("child"));
  EXPECT_EQ(blocks[0].attention, (decltype(blocks[0].attention){descriptor::AttentionSubblock{4, 2}}));
  EXPECT_EQ(blocks[1].attention, (decltype(blocks[0].attention){descriptor::AttentionSubblock{2, 5}}));
  EXPECT_EQ(blocks[2].attention, (decltype(blocks[0].attention){descriptor::AttentionSubblock{4, 4}}));
  const auto weights = weights_of(*pretrained::ModelFolder::open(at("child"), families()).load(at::kCPU, at::kFloat));
  const auto before = weights_of(*pretrained::ModelFolder::open(at("parent"), families()).load(at::kCPU, at::kFloat));
  EXPECT_EQ(weights.size(), before.size());
  for (const auto& [name, weight] : before) {
    const bool cut = name.starts_with("model.layers.1.self_attn.");
    EXPECT_TRUE(cut || at::equal(weights.at(name), weight)) << name;
  }
}

TEST_F(LinearFeedForward, IsRefusedWhereThereIsNothingToReplace) {
  write("parent", "qwen3_moe", kMixtures);
  const auto problem = [&](size_t layer, const LayerKeeps& keeps) {
    std::vector<LayerKeeps> layers(kMixtures.size());
    layers[layer] = keeps;
    return error_of([&] { child_blocks(pruning_of(layers), blocks_of(at("parent")), "p: "); });
  };
  EXPECT_THAT(problem(2, {.linear_attention = true}), HasSubstr("p: layer 2: has no attention to replace"));
  EXPECT_THAT(problem(3, {.linear_ffn = true}), HasSubstr("p: layer 3: has no feed-forward block to replace"));
  EXPECT_THAT(problem(0, {.no_attention = true, .linear_attention = true}), HasSubstr("has no attention to replace"));
  EXPECT_THAT(
      problem(0, {.linear_attention = true, .kv_heads = {1}}), HasSubstr("kv_heads: the layer has no attention"));
  EXPECT_THAT(
      problem(0, {.experts_per_token = 3}), HasSubstr("experts_per_token: expected 1 to 2, the parent's; found 3"));
  EXPECT_THAT(problem(1, {.experts_per_token = 1}), HasSubstr("experts: the layer has no experts"));
}
}  // namespace

}  // namespace lehr::prune
