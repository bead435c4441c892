// check_plan on meta, in a world that sends nothing: every valid plan of the families passes on every small mesh.
#include "lehr/shard/plan_check.h"

#include <gmock/gmock.h>

#include "lehr/mesh/fake_transport.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/qwen3_next/family.h"
#include "lehr/peft/inject.h"
#include "test/shard/plans.h"

namespace lehr::shard {
namespace {

using mesh::DeviceMeshParameters;
using mesh::DistributedContext;
using test::MeshRank;
using test::problem_of;
using testing::HasSubstr;

// All meshes of at most eight ranks with these degrees.
std::vector<DeviceMeshParameters> small_meshes(bool experts) {
  std::vector<DeviceMeshParameters> meshes;
  for (const int64_t replicate : {1, 2}) {
    for (const int64_t shard : {1, 2, 4}) {
      for (const int64_t cp : {1, 2, 4}) {
        for (const int64_t tp : {1, 2, 4}) {
          for (const int64_t ep : {1, 2, 4}) {
            const bool fits = replicate * shard * cp * tp <= 8 && (shard * cp * tp) % ep == 0;
            if (fits && (ep == 1 || experts)) {
              meshes.push_back(
                  {.data_parallel_replicate = replicate,
                   .data_parallel_shard = shard,
                   .context_parallel = cp,
                   .tensor_parallel = tp,
                   .expert_parallel = ep});
            }
          }
        }
      }
    }
  }
  return meshes;
}

template <class Model>
void expect_legal(const typename Model::Impl::Parameters& params, const auto& parallelize, bool whole_rows = false) {
  for (const DeviceMeshParameters& mesh : small_meshes(requires { params.model.layer.moe; })) {
    if (whole_rows && mesh.context_parallel > 1) {
      continue;
    }
    for (const int64_t rank : {int64_t{0}, mesh.world_size() - 1}) {
      MeshRank at(mesh, rank);
      Model model = test::build<Model>(params);
      const auto sharded = parallelize(at.context, *model, ParallelizeOptions{});
      EXPECT_EQ(problem_of([&] { check_plan(at.context, *model); }), "") << mesh.describe() << ", rank " << rank;
    }
  }
}

TEST(CheckPlan, AcceptsQwen3OnEveryMesh) {
  using Model = model::Qwen3DenseForCausalLM;
  auto params = test::small<Model>();
  expect_legal<Model>(params, model::parallelize_qwen3_dense);
  params.tie_word_embeddings = true;
  expect_legal<Model>(params, model::parallelize_qwen3_dense);
}

TEST(CheckPlan, AcceptsQwen3MoEOnEveryMesh) {
  using Model = model::Qwen3MoEForCausalLM;
  expect_legal<Model>(test::small<Model>(), model::parallelize_qwen3_moe);
}

TEST(CheckPlan, AcceptsLlama3OnEveryMesh) {
  using Model = model::Llama3ForCausalLM;
  expect_legal<Model>(test::small<Model>(), model::parallelize_llama3);
}

TEST(CheckPlan, AcceptsQwen3NextOnEveryMesh) {
  using Model = model::Qwen3NextForCausalLM;
  auto params = test::small<Model>();
  params.model.num_hidden_layers = 4;
  params.model.layer.linear = {
      .linear_key_head_dim = 4, .linear_value_head_dim = 6, .linear_num_key_heads = 4, .linear_num_value_heads = 8};
  params.model.layer.moe = {
      .num_experts = 8, .num_experts_per_tok = 2, .moe_intermediate_size = 4, .shared_expert_intermediate_size = 4};
  expect_legal<Model>(params, model::parallelize_qwen3_next);
}

TEST(CheckPlan, AcceptsHeadsThatScoreAndEmbed) {
  auto classifier = test::small<model::Llama3ForClassification>();
  classifier.num_labels = 3;
  classifier.classifier_dropout = 0.1;
  expect_legal<model::Llama3ForClassification>(classifier, model::parallelize_llama3, /*whole_rows=*/true);
  auto embedder = test::small<model::Qwen3DenseForEmbedding>();
  embedder.embedding_dim = 6;
  expect_legal<model::Qwen3DenseForEmbedding>(embedder, model::parallelize_qwen3_dense, /*whole_rows=*/true);
}

// Frozen weights have no gradient, so any layout may read them; adapters have one.
TEST(CheckPlan, AcceptsAdapters) {
  using Model = model::Qwen3MoEForCausalLM;
  const peft::Method lora{peft::Lora{.module_name_pattern = ".*(q_proj|gate_proj)", .r = 2}};
  for (const DeviceMeshParameters& mesh : small_meshes(/*experts=*/true)) {
    if (mesh.tensor_parallel == 1) {  // adapters are refused with tp
      MeshRank at(mesh, mesh.world_size() - 1);
      Model model = test::build<Model>(test::small<Model>());
      peft::inject_peft_and_freeze(lora, *model);
      const auto sharded = model::parallelize_qwen3_moe(at.context, *model);
      EXPECT_EQ(problem_of([&] { check_plan(at.context, *model); }), "") << mesh.describe();
    }
  }
}

// Sizes do not matter: nothing is allocated or computed.
TEST(CheckPlan, AcceptsAnEightBillionModelOn1024Ranks) {
  using Model = model::Llama3ForCausalLM;
  auto params = test::small<Model>();
  params.model.layer.hidden_size = 4096;
  params.model.layer.intermediate_size = 14336;
  params.model.layer.num_attention_heads = 32;
  params.model.layer.num_key_value_heads = 8;
  params.model.layer.head_dim = 128;
  params.model.num_hidden_layers = 32;
  params.model.split_vocab_size = {{"base", 128256}};
  params.model.split_vocab_order = {"base"};
  MeshRank at({.data_parallel_shard = 32, .context_parallel = 4, .tensor_parallel = 8}, 1000);
  Model model = test::build<Model>(params);
  const auto sharded = model::parallelize_llama3(at.context, *model, {});
  EXPECT_EQ(problem_of([&] { check_plan(at.context, *model, {.rows = 1, .tokens = 8192}); }), "");
}

TEST(CheckPlan, DoesNotChangeTheModel) {
  using Model = model::Qwen3MoEForCausalLM;
  MeshRank at({.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2});
  Model model = test::build<Model>(test::small<Model>());
  const auto sharded = model::parallelize_qwen3_moe(at.context, *model);
  model->train();
  const at::Tensor before = model->moe_tokens_per_expert();
  check_plan(at.context, *model);
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(at::equal(model->moe_tokens_per_expert(), before));
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    EXPECT_TRUE(parameter->shown().is_same(parameter->value())) << name;
    EXPECT_TRUE(parameter->value().is_meta()) << name;
  }
  EXPECT_EQ(operator_watch(), nullptr);
}

// The inputs of one of two stages, of sequences that `tp` ranks divide.
template <class Stage>
PlanInputs inputs_of_stage(const Stage& stage, int64_t number, int64_t tp) {
  PlanInputs inputs{.tokens = 8 * tp};
  const at::Tensor ids = at::empty({inputs.rows, inputs.tokens}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  if (number == 0) {
    inputs.sent = stage.infer_stage_outputs_from_pipeline_inputs({{"input_ids", ids}}, 1);
  } else {
    inputs.received = stage.infer_stage_inputs_from_pipeline_inputs({{"input_ids", ids}}, 1);
  }
  return inputs;
}

TEST(CheckPlan, AcceptsLaterStagesThatTakeHiddenStates) {
  using Model = model::Qwen3DenseForCausalLM;
  const auto params = test::small<Model>();
  for (const int64_t number : {0, 1}) {
    MeshRank at({.data_parallel_shard = 2, .context_parallel = 2, .tensor_parallel = 2}, 3);
    Model model(
        params,
        model::PipelineStageInfo{number, 2},
        nn::HiddenStatesAggregationMode::no,
        nn::ActivationCheckpointing{});
    const auto sharded = model::parallelize_qwen3_dense(at.context, *model, {});
    EXPECT_EQ(problem_of([&] { check_plan(at.context, *model, inputs_of_stage(*model, number, 2)); }), "") << number;
  }
}

TEST(CheckPlan, AcceptsSnapshotsOfHiddenStates) {
  using Model = model::Qwen3DenseForCausalLM;
  const auto params = test::small<Model>();
  for (const int64_t number : {0, 1}) {
    MeshRank at({.data_parallel_shard = 2, .tensor_parallel = 4}, 5);
    Model model(
        params,
        model::PipelineStageInfo{number, 2},
        nn::HiddenStatesAggregationMode::mean,
        nn::ActivationCheckpointing{});
    const auto sharded = model::parallelize_qwen3_dense(at.context, *model, {});
    EXPECT_EQ(problem_of([&] { check_plan(at.context, *model, inputs_of_stage(*model, number, 4)); }), "") << number;
  }
}

TEST(CheckPlan, RefusesAMaterializedModel) {
  using Model = model::Llama3ForCausalLM;
  MeshRank at({.data_parallel_shard = 2});
  Model model = test::build<Model>(test::small<Model>());
  const auto sharded = model::parallelize_llama3(at.context, *model);
  nn::materialize(*model, at::kCPU, at::kFloat);
  EXPECT_THAT(problem_of([&] { check_plan(at.context, *model); }), HasSubstr("has memory; check plans before"));
}

}  // namespace
}  // namespace lehr::shard
