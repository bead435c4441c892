// The initial values of every family's parameters: by kind, either a constant, or the mean and the standard deviation.
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "lehr/model/gemma3/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/smollm3/family.h"

namespace lehr::model {
namespace {

using ::testing::UnorderedElementsAreArray;
using Kinds = std::set<std::string>;

// "model.layers.3.mlp.up_proj.weight" is of the kind "mlp.up_proj.weight".
std::string kind_of(const std::string& name) {
  const std::string layers = "layers.";
  const size_t begin = name.find(layers);
  return begin == std::string::npos ? name : name.substr(name.find('.', begin + layers.size()) + 1);
}

// The parameters of a model by their kind of initial value.
struct Expected {
  Kinds normal = {
      "model.embed_tokens.token_embedding.default.weight",
      "self_attn.q_proj.weight",
      "self_attn.k_proj.weight",
      "self_attn.v_proj.weight",
      "self_attn.o_proj.weight",
      "mlp.gate_proj.weight",
      "mlp.up_proj.weight",
      "mlp.down_proj.weight",
      "lm_head.lm_head.default.weight"};
  Kinds ones = {"input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight"};
  Kinds zeros = {};
};

// The sample mean and standard deviation of n normal numbers scatter by std / sqrt(n) and std / sqrt(2 n). The
// tolerance is five of those, which one sample in two million exceeds.
void expect_normal(const std::string& name, const at::Tensor& value, double std) {
  const auto n = static_cast<double>(value.numel());
  ASSERT_GE(n, 500) << name << " is too small to tell: 5 / sqrt(2 n) should be far below 1/2";
  const at::Tensor numbers = value.detach().to(at::kDouble);
  EXPECT_NEAR(numbers.mean().item<double>(), 0, 5 * std / std::sqrt(n)) << name;
  EXPECT_NEAR(numbers.std().item<double>(), std, 5 * std / std::sqrt(2 * n)) << name;
}

void expect_initial_weights(const nn::Model& model, double std, const Expected& expected) {
  Expected seen{.normal = {}, .ones = {}, .zeros = {}};
  std::vector<at::Tensor> drawn;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    const at::Tensor& value = parameter->value();
    const std::string kind = kind_of(name);
    if (expected.ones.contains(kind)) {
      seen.ones.insert(kind);
      EXPECT_TRUE(value.eq(1).all().item<bool>()) << name;
    } else if (expected.zeros.contains(kind)) {
      seen.zeros.insert(kind);
      EXPECT_TRUE(value.eq(0).all().item<bool>()) << name;
    } else {
      seen.normal.insert(kind);
      expect_normal(name, value, std);
      for (const at::Tensor& other : drawn) {
        EXPECT_FALSE(at::equal(value.flatten().slice(0, 0, 9), other)) << name << " is like another parameter";
      }
      drawn.push_back(value.flatten().slice(0, 0, 9));
    }
  }
  EXPECT_THAT(seen.normal, UnorderedElementsAreArray(expected.normal));
  EXPECT_THAT(seen.ones, UnorderedElementsAreArray(expected.ones));
  EXPECT_THAT(seen.zeros, UnorderedElementsAreArray(expected.zeros));
}

// A model of three layers with pairwise different sizes; the standard deviation is the flavor's unless given.
std::shared_ptr<nn::Model> initialized(
    const descriptor::ModelFamily& family, std::optional<double> std, bool classifies = false) {
  const auto args = family.from_flavor("debugmodel");
  descriptor::ModelOverrides shape;
  shape.vocab_size = 90;
  shape.hidden_size = 48;
  shape.intermediate_size = 56;
  shape.num_hidden_layers = 3;
  shape.num_attention_heads = 6;
  shape.num_key_value_heads = 2;
  shape.head_dim = 16;
  shape.tie_word_embeddings = false;
  shape.initializer_range = std;
  if (args->has_experts()) {
    shape.num_experts = 12;
    shape.num_experts_per_tok = 2;
    shape.moe_intermediate_size = 20;
    shape.expert_bias = true;
    shape.mlp_only_layers = {1};
  }
  args->apply(shape);
  if (classifies) {
    args->set_classification(/*num_labels=*/20, /*dropout=*/0);
  }
  args->check("");
  auto model = args->build({});
  nn::materialize(*model, at::kCPU, at::kFloat);
  model->reset_parameters({.seed = 1});
  return model;
}

Expected of_qwen3() {
  Expected expected;
  expected.ones.insert({"self_attn.q_norm.weight", "self_attn.k_norm.weight"});
  return expected;
}

Expected of_qwen3_moe() {
  Expected expected = of_qwen3();
  expected.normal.insert(
      {"mlp.router.gate.weight",
       "mlp.grouped_experts.gate_proj.weight",
       "mlp.grouped_experts.up_proj.weight",
       "mlp.grouped_experts.down_proj.weight"});
  expected.zeros.insert("mlp.router.expert_bias");
  return expected;
}

Expected of_qwen2() {
  Expected expected;
  expected.zeros.insert({"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"});
  return expected;
}

Expected of_olmo() {
  Expected expected = of_qwen3();
  expected.ones.erase("input_layernorm.weight");
  expected.ones.insert("post_feedforward_layernorm.weight");
  return expected;
}

// Norms multiply by 1 + weight.
Expected of_gemma3() {
  Expected expected = of_qwen3();
  expected.zeros = expected.ones;
  expected.zeros.insert({"pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"});
  expected.ones = {};
  return expected;
}

// No family scales the standard deviation by depth. 0.02 is Hugging Face's default.
TEST(InitialWeights, HaveTheStandardDeviationOfTheConfigInEveryLayer) {
  for (const std::optional<double> std : {std::optional<double>(), std::optional(0.07)}) {
    const auto expect = [&](const descriptor::ModelFamily& family, const Expected& expected) {
      SCOPED_TRACE(family.name);
      expect_initial_weights(*initialized(family, std), std.value_or(0.02), expected);
    };
    expect(llama3_family(), {});
    expect(qwen3_dense_family(), of_qwen3());
    expect(qwen3_moe_family(), of_qwen3_moe());
    expect(mistral_family(), {});
    expect(smollm3_family(), {});
    expect(qwen2_family(), of_qwen2());
    expect(olmo2_family(), of_olmo());
    expect(olmo3_family(), of_olmo());
    expect(gemma3_family(), of_gemma3());
  }
}

TEST(InitialWeights, OfAClassificationHeadHaveItToo) {
  Expected expected;
  expected.normal.erase("lm_head.lm_head.default.weight");
  expected.normal.insert("cls_head.score.weight");
  expect_initial_weights(*initialized(llama3_family(), 0.07, /*classifies=*/true), 0.07, expected);
}

TEST(InitialWeights, OfAnEmbeddingHeadHaveItToo) {
  const Llama3Parameters backbone{
      .layer =
          {.hidden_size = 48,
           .intermediate_size = 56,
           .num_attention_heads = 6,
           .num_key_value_heads = 2,
           .rms_norm_eps = 1e-6,
           .head_dim = 16,
           .initializer_range = 0.07},
      .num_hidden_layers = 1,
      .rope_base = 100,
      .max_position_ids = 64,
      .split_vocab_size = {{"default", 90}},
      .split_vocab_order = {"default"}};
  Llama3ForEmbedding model(
      Llama3ForEmbeddingParameters{.model = backbone, .embedding_dim = 20},
      PipelineStageInfo{},
      HiddenStatesAggregationMode::no,
      ActivationCheckpointing{});
  nn::materialize(*model, at::kCPU, at::kFloat);
  model->reset_parameters({.seed = 1});
  Expected expected;
  expected.normal.erase("lm_head.lm_head.default.weight");
  expected.normal.insert("embedding_head.projection.weight");
  expect_initial_weights(*model, 0.07, expected);
}

// All experts share one tensor; each must have numbers of its own.
TEST(InitialWeights, DifferFromExpertToExpert) {
  const auto model = initialized(qwen3_moe_family(), 0.07);
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    if (name.find("grouped_experts") != std::string::npos) {
      const auto experts = parameter->value().detach().unbind();
      for (size_t i = 1; i < experts.size(); ++i) {
        EXPECT_FALSE(at::equal(experts[i], experts[0])) << name << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace lehr::model
