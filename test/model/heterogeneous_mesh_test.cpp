// Heterogeneous models on meshes: tensor, expert and fully sharded data parallelism equal one device.
#include <gmock/gmock.h>

#include "lehr/model/gemma3/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/mixtral/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/smollm3/family.h"
#include "lehr/shard/plan_check.h"
#include "test/model/heterogeneous.h"
#include "test/shard/one_device.h"

namespace lehr::model::test {
namespace {

using mesh::DistributedContext;
using shard::test::expect_near;
using shard::test::make_real;
using shard::test::on_mesh;
using shard::test::problem_on;
using ::testing::HasSubstr;

struct Case {
  std::string name, model_type;
  std::vector<LayerShape> layers;
  mesh::DeviceMeshParameters mesh;
};

// All sizes divide by two ranks.
const std::vector<Case> kCases{
    {"Qwen3Tensor", "qwen3", kMixed, {.tensor_parallel = 2}},
    {"Qwen3Sharded", "qwen3", kMixed, {.data_parallel_shard = 2}},
    {"Qwen3WithHoles", "qwen3", kWithHoles, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Llama", "llama", kWithHoles, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Olmo2", "olmo2", kMixed, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Olmo2WithFewerHeadsThanRanks", "olmo2", kWithHoles, {.tensor_parallel = 4}},
    {"Qwen2", "qwen2", kMixed, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Mistral", "mistral", kMixed, {.tensor_parallel = 2}},
    {"SmolLM3", "smollm3", kMixed, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Olmo3", "olmo3", kMixed, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Gemma3", "gemma3_text", kMixed, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Gemma3WithHoles", "gemma3_text", kWithHoles, {.tensor_parallel = 2}},
    {"GptOss", "gpt_oss", kOnlyMixtures, {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}},
    {"DeepseekV3",
     "deepseek_v3",
     kLatentMixtures,
     {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}},
    {"Qwen3Next", "qwen3_next", kDeltaMixtures, {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}},
    {"Glm4Moe", "glm4_moe", kSharedMixtures, {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}},
    {"MiniMaxM2", "minimax_m2", kMixtures, {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}},
    {"Mixtral", "mixtral", kMixtures, {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}},
    {"Qwen3WithLinear", "qwen3", kWithLinear, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"LlamaWithLinear", "llama", kWithLinear, {.tensor_parallel = 2}},
    {"Olmo2WithLinear", "olmo2", kWithLinear, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Gemma3WithLinear", "gemma3_text", kWithLinear, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Qwen3WithWindows", "qwen3", kWithWindows, {.data_parallel_shard = 2, .tensor_parallel = 2}},
    {"Gemma3WithWindows", "gemma3_text", kWithWindows, {.tensor_parallel = 2}},
    {"GptOssWithWindows",
     "gpt_oss",
     kMixturesWithWindows,
     {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}},
    {"Qwen3MoeWithLinear",
     "qwen3_moe",
     kMixturesWithLinear,
     {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}},
    {"Qwen3Moe", "qwen3_moe", kMixtures, {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}}};

class HeterogeneousOnMeshes : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Families, HeterogeneousOnMeshes, ::testing::ValuesIn(kCases), [](const auto& one) {
  return one.param.name;
});

shard::FullySharded parallelize(const std::string& model_type, DistributedContext& context, nn::Model& model) {
  const shard::ParallelizeOptions options{.fully_shard = {.compute = at::kDouble, .reduce = at::kDouble}};
  const auto function = model_type == "qwen3"         ? parallelize_qwen3_dense
                        : model_type == "llama"       ? parallelize_llama3
                        : model_type == "olmo2"       ? parallelize_olmo2
                        : model_type == "qwen2"       ? parallelize_qwen2
                        : model_type == "mistral"     ? parallelize_mistral
                        : model_type == "smollm3"     ? parallelize_smollm3
                        : model_type == "olmo3"       ? parallelize_olmo3
                        : model_type == "gemma3_text" ? parallelize_gemma3
                        : model_type == "mixtral"     ? parallelize_mixtral
                        : model_type == "gpt_oss"     ? parallelize_gpt_oss
                        : model_type == "glm4_moe"    ? parallelize_glm4_moe
                        : model_type == "minimax_m2"  ? parallelize_minimax_m2
                        : model_type == "deepseek_v3" ? parallelize_deepseek_v3
                        : model_type == "qwen3_next"  ? parallelize_qwen3_next
                                                      : parallelize_qwen3_moe;
  return function(context, model, options);
}

TEST_P(HeterogeneousOnMeshes, EqualOneDevice) {
  const Case& one = GetParam();
  at::manual_seed(8);
  nn::ModelInputs inputs;
  inputs.input_ids = at::randint(kVocabulary - 1, {2, 8});
  inputs.labels = at::randint(kVocabulary - 1, {2, 8});
  // An even vocabulary, for two ranks of tp.
  const auto build = [&] {
    const auto args = family_of(one.model_type)
                          .from_hf_config(parse_json(config_json(one.model_type, one.layers, 28), "config.json"));
    return args->build({.checkpointing = true});
  };
  const auto whole = build();
  make_real(*whole);
  const at::Tensor wanted = whole->forward(inputs).logps;
  wanted.sum().backward();
  const auto expected = nn::named_parameters(*whole);
  on_mesh(one.mesh, [&](DistributedContext& context) {
    const auto model = build();
    auto sharded = parallelize(one.model_type, context, *model);
    shard::check_plan(context, *model);
    make_real(*model);
    shard::test::expect_same_values(*model, *whole);
    sharded.begin_step();
    const at::Tensor logps = model->forward(inputs).logps;
    expect_near("logps", logps, wanted, wanted);
    logps.sum().backward();
    sharded.finish_backward();
    const auto found = nn::named_parameters(*model);
    for (size_t i = 0; i < found.size(); ++i) {
      const nn::Parameter& parameter = *found[i].parameter;
      if (parameter.is_state()) {
        continue;
      }
      // Data ranks have the same rows here.
      const at::Tensor sum = expected[i].parameter->value().grad() * one.mesh.data_parallel_shard;
      expect_near(found[i].name, parameter.value().grad(), narrow_to(sum, parameter.box()), sum);
    }
  });
}

TEST(HeterogeneousOnMeshes, RefuseALayerThatDoesNotDivideByItsNumber) {
  const auto problem =
      [](const std::string& model_type, const std::vector<LayerShape>& layers, const mesh::DeviceMeshParameters& mesh) {
        return problem_on(mesh, [&](DistributedContext& context) {
          parallelize(model_type, context, *args_of(model_type, layers)->build({}));
        });
      };
  EXPECT_THAT(
      problem("qwen3", {{4, 32}, {2, 32}, {4, 15}}, {.tensor_parallel = 2}),
      HasSubstr(
          "intermediate_size: 15 cannot be split evenly over parallelism.tensor_parallel_degree = 2; choose a degree "
          "that divides it (layer 2)"));
  EXPECT_THAT(
      problem("qwen3_moe", {{4, 8, 6, 2}, {4, 8, 5, 2}}, {.data_parallel_shard = 2, .expert_parallel = 2}),
      HasSubstr("num_experts (5) must be a multiple of it, found 2 (layer 1)"));
}

}  // namespace
}  // namespace lehr::model::test
