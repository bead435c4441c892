#include "lehr/peft/inject.h"

#include <gmock/gmock.h>

#include "lehr/model/llama3/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "test/peft/support.h"

namespace lehr::peft {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::fails_with;
using testing::tiny;

std::unique_ptr<descriptor::ModelArgs> tiny_mixture() {
  auto args = model::qwen3_moe_family().flavors.at("debugmodel")();
  descriptor::ModelOverrides overrides;
  overrides.hidden_size = 16;
  overrides.intermediate_size = 24;
  overrides.num_hidden_layers = 2;
  overrides.num_attention_heads = 2;
  overrides.num_key_value_heads = 1;
  overrides.head_dim = 8;
  overrides.vocab_size = 40;
  overrides.num_experts = 4;
  overrides.num_experts_per_tok = 2;
  overrides.moe_intermediate_size = 12;
  args->apply(overrides);
  return args;
}

std::vector<std::string> names_of(const std::vector<nn::NamedParameter>& parameters) {
  std::vector<std::string> names;
  for (const auto& entry : parameters) {
    names.push_back(entry.name);
  }
  return names;
}

at::Tensor logits(nn::Model& model, const at::Tensor& ids) {
  nn::ModelInputs inputs;
  inputs.input_ids = ids;
  return model.logits(model.forward(inputs).hidden_states);
}

// Makes B nonzero, as after training.
void shake(torch::nn::Module& model) {
  at::NoGradGuard no_grad;
  for (const auto& adapted : adapted_layers(model)) {
    adapted.lora->B.normal_(0, 0.1);
  }
}

TEST(Inject, FreezesAllButTheAdaptersBeforeMaterialization) {
  const auto model = tiny()->build({});
  const auto trainable = inject_peft_and_freeze({Lora{.module_name_pattern = R"(.*\.(q|v)_proj)", .r = 2}}, *model);
  EXPECT_THAT(
      names_of(trainable),
      ElementsAre(
          "model.layers.0.self_attn.q_proj.lora.A",
          "model.layers.0.self_attn.q_proj.lora.B",
          "model.layers.0.self_attn.v_proj.lora.A",
          "model.layers.0.self_attn.v_proj.lora.B",
          "model.layers.1.self_attn.q_proj.lora.A",
          "model.layers.1.self_attn.q_proj.lora.B",
          "model.layers.1.self_attn.v_proj.lora.A",
          "model.layers.1.self_attn.v_proj.lora.B"));
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    EXPECT_EQ(parameter->trainable(), name.find(".lora.") != std::string::npos) << name;
    EXPECT_TRUE(parameter->value().is_meta()) << name;
  }
  materialize_frozen(*model, at::kCPU, at::kBFloat16);
  nn::materialize(*model, at::kCPU, at::kFloat);
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    EXPECT_EQ(parameter->value().scalar_type(), parameter->trainable() ? at::kFloat : at::kBFloat16) << name;
  }
}

TEST(Inject, InitializesAdaptersOfAnInitializedModel) {
  const auto late = tiny()->build({});
  inject_peft_and_freeze({Lora{.module_name_pattern = ".*_proj"}}, *late);
  nn::materialize(*late, at::kCPU, at::kFloat);
  late->reset_parameters({.seed = 4});
  const auto early = tiny()->build({});
  nn::materialize(*early, at::kCPU, at::kFloat);
  early->reset_parameters({.seed = 4});
  const at::Tensor ids = at::randint(40, {2, 9}, at::kLong);
  const at::Tensor before = logits(*early, ids);
  inject_peft_and_freeze({Lora{.module_name_pattern = ".*_proj"}}, *early, {.seed = 4});
  EXPECT_TRUE(at::equal(logits(*early, ids), before));
  const auto a = nn::named_parameters(*late);
  const auto b = nn::named_parameters(*early);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].parameter->value(), b[i].parameter->value())) << a[i].name;
  }
}

TEST(Inject, FullyTunesModulesAndStacksMethods) {
  const auto model = tiny()->build({});
  const auto trainable = inject_peft_and_freeze(
      {Stack{
          {{Lora{.module_name_pattern = R"(.*layers\.0\.self_attn\.o_proj)"}},
           {FullTune{R"(model\.layers\.1\.self_attn)"}},
           {FullTune{R"(model\.norm)"}}}}},
      *model);
  EXPECT_THAT(
      names_of(trainable),
      ElementsAre(
          "model.layers.0.self_attn.o_proj.lora.A",
          "model.layers.0.self_attn.o_proj.lora.B",
          "model.layers.1.self_attn.q_proj.weight",
          "model.layers.1.self_attn.k_proj.weight",
          "model.layers.1.self_attn.v_proj.weight",
          "model.layers.1.self_attn.o_proj.weight",
          "model.layers.1.self_attn.q_norm.weight",
          "model.layers.1.self_attn.k_norm.weight",
          "model.norm.weight"));
}

TEST(Inject, CountsTrainableParameters) {
  const auto model = tiny(/*tied=*/true)->build({});
  const int64_t before = nn::count_parameters(*model);
  inject_peft_and_freeze({Lora{.module_name_pattern = R"(.*\.0\..*q_proj)", .r = 2}}, *model);
  const TrainableCounts counts = count_trainable(*model);
  EXPECT_EQ(counts.trainable, 2 * 16 + 16 * 2);
  EXPECT_EQ(counts.total, before + counts.trainable);
}

TEST(Inject, AdaptsExperts) {
  const auto model = tiny_mixture()->build({});
  const auto trainable = inject_peft_and_freeze({Lora{.module_name_pattern = R"(.*1\.mlp.*up_proj)", .r = 3}}, *model);
  EXPECT_THAT(
      names_of(trainable),
      ElementsAre(
          "model.layers.1.mlp.grouped_experts.up_proj.lora.A", "model.layers.1.mlp.grouped_experts.up_proj.lora.B"));
  EXPECT_EQ(trainable[0].parameter->shape(), (std::vector<int64_t>{4, 3, 16}));
  EXPECT_EQ(trainable[1].parameter->shape(), (std::vector<int64_t>{4, 12, 3}));
  for (const std::string layer : {"grouped_experts.gate_proj", "router.gate"}) {
    EXPECT_THAT(
        [&] {
          inject_peft_and_freeze(
              {Lora{.module_name_pattern = ".*" + layer, .dropout = 0.5}}, *tiny_mixture()->build({}));
        },
        fails_with("peft.dropout: model.layers.0.mlp." + layer + " is inside an MoE layer"));
  }
}

// Tolerances: the rounding of one matmul that is summed in another order, amplified by the norms of two layers (up to
// 2.6e-6 in 200 draws); float64 has 2^29 times less of it than float32.
class Merge : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(DenseAndMixture, Merge, ::testing::Bool());

TEST_P(Merge, EqualsTheModelWithAdapters) {
  const auto args = GetParam() ? tiny_mixture() : tiny();
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 4e-6}, {at::kDouble, 1e-12}}) {
    const auto model = args->build({});
    inject_peft_and_freeze({Lora{.module_name_pattern = ".*_proj", .r = 4}}, *model);
    nn::materialize(*model, at::kCPU, dtype);
    model->reset_parameters({.seed = 2});
    shake(*model);
    model->eval();
    const at::Tensor ids = at::randint(40, {2, 12}, at::kLong);
    const at::Tensor apart = logits(*model, ids).detach();
    EXPECT_EQ(merge_peft(*model), 14);
    EXPECT_TRUE(adapted_layers(*model).empty());
    EXPECT_EQ(nn::count_parameters(*model), nn::count_parameters(*args->build({})));
    const at::Tensor merged = logits(*model, ids).detach();
    EXPECT_TRUE(at::allclose(merged, apart, 0, tolerance)) << (merged - apart).abs().max();
    EXPECT_EQ(merge_peft(*model), 0);
  }
}

TEST(MergeNarrow, RoundsOnceIntoNarrowWeights) {
  nn::Linear linear(6, 6);
  auto holder = std::make_shared<torch::nn::Module>();
  holder->register_module("linear", linear);
  nn::materialize(*holder, at::kCPU, at::kBFloat16);
  linear->reset_parameters({.seed = 1});
  inject_peft_and_freeze({Lora{.module_name_pattern = "linear"}}, *holder);
  shake(*holder);
  const auto adapted = adapted_layers(*holder);
  const at::Tensor exact = linear->weight.to(at::kFloat) + adapted.front().lora->delta_weight();
  merge_peft(*holder);
  EXPECT_TRUE(at::equal(linear->weight, exact.to(at::kBFloat16)));
}

TEST(Inject, SuggestsNamesIfAPatternMatchesNothing) {
  const auto inject = [](const Method& method) {
    return [method] { inject_peft_and_freeze(method, *tiny(true)->build({})); };
  };
  EXPECT_THAT(
      inject({Lora{.module_name_pattern = R"(.*\.q_porj)"}}),
      fails_with("peft.target_pattern: \".*\\.q_porj\" matches the whole name of no linear layer; the nearest are: "
                 "model.layers.0.self_attn.q_proj, "));
  EXPECT_THAT(inject({Lora{.module_name_pattern = "q_proj"}}), fails_with("model.layers.0.self_attn.q_proj"));
  EXPECT_THAT(
      inject({FullTune{"model.nrom"}}),
      fails_with("peft.full_tune_pattern: \"model.nrom\" matches the whole name of no "
                 "module with parameters; the nearest are: model.norm, "));
  EXPECT_THAT(inject({Lora{.module_name_pattern = "(q_proj"}}), fails_with("is not a regular expression"));
  EXPECT_THAT(inject({Stack{}}), fails_with("no parameter is trainable"));
}

TEST(Inject, RefusesUnsupportedAndConflictingPatterns) {
  const auto inject = [](const Method& method) {
    return [method] { inject_peft_and_freeze(method, *tiny()->build({})); };
  };
  EXPECT_THAT(
      inject({Lora{.module_name_pattern = ".*"}}),
      fails_with("peft.target_pattern: lm_head.lm_head.default: the loss reads"));
  EXPECT_THAT(
      [] { inject_peft_and_freeze({Lora{.module_name_pattern = ".*"}}, *tiny(/*tied=*/true)->build({})); },
      fails_with("or name the embedding, to which the head is tied, in peft.full_tune_pattern"));
  const Lora q{.module_name_pattern = ".*q_proj"};
  EXPECT_THAT(inject({Stack{{{q}, {q}}}}), fails_with("self_attn.q_proj is selected by lora and by lora"));
  EXPECT_THAT(
      inject({Stack{{{q}, {FullTune{R"(model\.layers\.1)"}}}}}),
      fails_with("model.layers.1.self_attn.q_proj is selected by lora and by full_tune"));
  const auto model = tiny()->build({});
  inject_peft_and_freeze({q}, *model);
  EXPECT_THAT([&] { inject_peft_and_freeze({q}, *model); }, fails_with("already has adapters"));
  EXPECT_THAT([&] { add_lora(*model, {{"model.norm", q}}); }, fails_with("the model has no linear layer model.norm"));
}

}  // namespace
}  // namespace lehr::peft
