// The families' parallelize functions: models on tp ranks equal one device.
#include <gmock/gmock.h>

#include "lehr/model/gemma3/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/parallelize_decoder.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "test/shard/one_device.h"
#include "test/shard/plans.h"

namespace lehr::model {
namespace {

using mesh::DistributedContext;
using shard::test::expect_near;
using shard::test::expect_same_gradients;
using shard::test::expect_same_values;
using shard::test::make_real;
using shard::test::on_mesh;
using shard::test::problem_on;
using shard::test::sequence_part;
using testing::HasSubstr;

constexpr int64_t kBatch = 2, kTokens = 8, kVocabulary = 17;

// What LEHR_DECODER_FAMILY(Name, name) declares.
#define TEST_FAMILY(Family, Name, name)                                               \
  struct Family {                                                                     \
    using Backbone = Name##Model;                                                     \
    using CausalLM = Name##ForCausalLM;                                               \
    using Classification = Name##ForClassification;                                   \
    using Embedding = Name##ForEmbedding;                                             \
    static constexpr auto parallelize = parallelize_##name;                           \
    static constexpr auto parallelize_model = parallelize_##name##_model;             \
    static constexpr auto parallelize_causal_lm = parallelize_##name##_for_causal_lm; \
  }
TEST_FAMILY(Qwen3, Qwen3Dense, qwen3_dense);
TEST_FAMILY(Qwen3Moe, Qwen3MoE, qwen3_moe);
TEST_FAMILY(Llama, Llama3, llama3);
TEST_FAMILY(Olmo2, Olmo2, olmo2);
TEST_FAMILY(Gemma3, Gemma3, gemma3);

template <class Family>
class Parallelize : public ::testing::Test {};
using Families = ::testing::Types<Qwen3, Qwen3Moe, Llama, Olmo2, Gemma3>;
TYPED_TEST_SUITE(Parallelize, Families);

template <class Model>
Model build(
    const typename Model::Impl::Parameters& params,
    ActivationCheckpointing checkpointing = {},
    HiddenStatesAggregationMode mode = HiddenStatesAggregationMode::no,
    const PipelineStageInfo& stage = {}) {
  return Model(params, stage, mode, checkpointing);
}

template <class Model>
typename Model::Impl::Parameters small() {
  typename Model::Impl::Parameters params{};
  params.model = shard::test::small_backbone<decltype(params.model)>(12, 5);
  return params;
}

nn::ModelInputs make_inputs() {
  at::manual_seed(8);
  nn::ModelInputs inputs;
  inputs.input_ids = at::randint(kVocabulary, {kBatch, kTokens});
  inputs.labels = at::randint(kVocabulary, {kBatch, kTokens});
  inputs.labels.select(1, 3).fill_(nn::kIgnoreIndex);
  inputs.attention_mask.document_ids = at::arange(kTokens).ge(5).to(at::kLong).unsqueeze(0);  // two packed documents
  return inputs;
}

const shard::ParallelizeOptions kInFloat64{.fully_shard = {.compute = at::kDouble, .reduce = at::kDouble}};

// Every data-parallel rank gets the same sequences here, so the sum over ranks is `times` the gradient of one device.
void expect_summed_gradients(const nn::Module& part, const nn::Module& whole, int64_t times) {
  const auto expected = nn::named_parameters(whole), found = nn::named_parameters(part);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const nn::Parameter& parameter = *found[i].parameter;
    const at::Tensor gradient = expected[i].parameter->value().grad();
    const at::Tensor own = parameter.value().grad();
    if (!gradient.defined()) {
      EXPECT_FALSE(own.defined()) << found[i].name;
    } else {
      const at::Tensor sum = gradient * times;
      expect_near(found[i].name, own, narrow_to(sum, parameter.box()), sum);
    }
  }
}

// Compares what `result` takes of the outputs (the same on all ranks) and all gradients with one device.
template <class Family, class Model>
void expect_equal_to_one_device(
    const typename Model::Impl::Parameters& params,
    const nn::ModelInputs& inputs,
    at::Tensor nn::ModelOutputs::*result,
    ActivationCheckpointing checkpointing = {},
    HiddenStatesAggregationMode snapshots = HiddenStatesAggregationMode::no) {
  Model whole = build<Model>(params, {}, snapshots);
  make_real(*whole);
  const nn::ModelOutputs expected = whole->forward(inputs);
  const at::Tensor weight = at::rand_like(expected.*result) + 0.5;
  (expected.*result * weight).sum().backward();
  const mesh::DeviceMeshParameters meshes[] = {
      {.tensor_parallel = 2},
      {.tensor_parallel = 4},
      {.data_parallel_replicate = 2, .tensor_parallel = 2},
      {.data_parallel_shard = 2, .tensor_parallel = 2}};
  for (const auto& mesh : meshes) {
    on_mesh(mesh, [&](DistributedContext& context) {
      Model model = build<Model>(params, checkpointing, snapshots);
      auto sharded = Family::parallelize(context, *model, kInFloat64);
      make_real(*model);
      expect_same_values(*model, *whole);
      sharded.begin_step();
      const nn::ModelOutputs outputs = model->forward(inputs);
      expect_near(
          "hidden_states",
          outputs.hidden_states,
          sequence_part(expected.hidden_states.detach(), context),
          expected.hidden_states.detach());
      expect_near("result", outputs.*result, expected.*result, expected.*result);
      (outputs.*result * weight).sum().backward();
      sharded.finish_backward();
      expect_summed_gradients(*model, *whole, mesh.data_parallel_replicate * mesh.data_parallel_shard);
      const TensorDict announced =
          model->infer_stage_outputs_from_pipeline_inputs({{"input_ids", inputs.input_ids}}, 1);
      EXPECT_EQ(announced.at("hidden_states").sizes(), outputs.hidden_states.sizes());
      if (outputs.logps.defined()) {
        EXPECT_EQ(announced.at("logps").sizes(), outputs.logps.sizes());
      }
    });
  }
}

TYPED_TEST(Parallelize, CausalLMEqualsOneDevice) {
  using Model = typename TypeParam::CausalLM;
  expect_equal_to_one_device<TypeParam, Model>(small<Model>(), make_inputs(), &nn::ModelOutputs::logps);
}

// The ranks' parts have different weights, and one sequence has none in the parts of the second half.
TYPED_TEST(Parallelize, SnapshotsOfHiddenStatesEqualOneDevice) {
  using Model = typename TypeParam::CausalLM;
  nn::ModelInputs inputs = make_inputs();
  inputs.hidden_states_agg_mask = at::rand({kBatch, kTokens}).ge(0.3).to(at::kDouble);
  inputs.hidden_states_agg_mask.select(0, 1).narrow(0, kTokens / 2, kTokens / 2).zero_();
  expect_equal_to_one_device<TypeParam, Model>(
      small<Model>(), inputs, &nn::ModelOutputs::hidden_states_snapshot, true, HiddenStatesAggregationMode::mean);
}

TYPED_TEST(Parallelize, SnapshotsOfHiddenStatesPassFromStageToStage) {
  using Model = typename TypeParam::CausalLM;
  const auto params = small<Model>();
  nn::ModelInputs inputs = make_inputs();
  inputs.hidden_states_agg_mask = at::rand({kBatch, kTokens});
  Model whole = build<Model>(params, {}, HiddenStatesAggregationMode::mean);
  make_real(*whole);
  const at::Tensor expected = whole->forward(inputs).hidden_states_snapshot;  // (embeddings and two layers, B, H)
  on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    nn::ModelInputs of_stage = inputs;
    for (const int64_t number : {0, 1}) {
      const PipelineStageInfo stage{number, 2};
      Model model = build<Model>(params, {}, HiddenStatesAggregationMode::mean, stage);
      auto sharded = TypeParam::parallelize_causal_lm(context, *model, stage, kInFloat64);
      make_real(*model);
      sharded.reset();
      const at::NoGradGuard no_grad;
      const nn::ModelOutputs outputs = model->forward(of_stage);
      of_stage.hidden_states = outputs.hidden_states;
      of_stage.hidden_states_snapshot = outputs.hidden_states_snapshot;
    }
    expect_near("snapshots", of_stage.hidden_states_snapshot, expected, expected);
  });
}

TYPED_TEST(Parallelize, TiedAndCheckpointedCausalLMEqualsOneDevice) {
  using Model = typename TypeParam::CausalLM;
  auto params = small<Model>();
  params.tie_word_embeddings = true;
  expect_equal_to_one_device<TypeParam, Model>(params, make_inputs(), &nn::ModelOutputs::logps, true);
}

// The rank without the last positions must rotate as the others do.
TYPED_TEST(Parallelize, ContextParallelCausalLMWithDynamicNtkEqualsOneDevice) {
  using Model = typename TypeParam::CausalLM;
  auto params = small<Model>();
  params.model.rope_scaling = nn::DynamicNtkRopeScaling{.factor = 4, .original_max_position_embeddings = 4};
  const nn::ModelInputs inputs = make_inputs();
  Model whole = build<Model>(params);
  make_real(*whole);
  const at::Tensor expected = whole->forward(inputs).logps.detach();
  for (const int64_t ranks : {2, 4}) {
    on_mesh({.context_parallel = ranks}, [&](DistributedContext& context) {
      Model model = build<Model>(params);
      auto sharded = TypeParam::parallelize(context, *model, kInFloat64);
      make_real(*model);
      sharded.begin_step();
      const at::Tensor logps = model->forward(shard::take_context_part(inputs, context)).logps.detach();
      expect_near(
          "logps", logps, shard::take_context_part(expected, 1, context.index(mesh::axis::cp), ranks), expected);
    });
  }
}

TYPED_TEST(Parallelize, ClassificationEqualsOneDevice) {
  using Model = typename TypeParam::Classification;
  auto params = small<Model>();
  params.num_labels = 3;
  params.classifier_dropout = 0.2;  // masks are drawn per token, and all ranks see the same tokens
  auto inputs = make_inputs();
  expect_equal_to_one_device<TypeParam, Model>(params, inputs, &nn::ModelOutputs::scores);
  inputs.pooling_mask = at::zeros({kBatch, kTokens});
  inputs.pooling_mask.select(1, 5).fill_(1);
  inputs.pooling_mask.select(1, 7).fill_(1);
  expect_equal_to_one_device<TypeParam, Model>(params, inputs, &nn::ModelOutputs::scores);
}

TYPED_TEST(Parallelize, EmbeddingEqualsOneDevice) {
  using Model = typename TypeParam::Embedding;
  auto params = small<Model>();
  params.embedding_dim = 5;
  params.normalize = true;
  expect_equal_to_one_device<TypeParam, Model>(params, make_inputs(), &nn::ModelOutputs::embeddings);
}

TYPED_TEST(Parallelize, PipelineStagesPassShardsOfTheSequence) {
  using Model = typename TypeParam::CausalLM;
  const nn::ModelInputs inputs = make_inputs();
  Model whole = build<Model>(small<Model>());
  make_real(*whole);
  const at::Tensor expected = whole->forward(inputs).logps;
  on_mesh({.tensor_parallel = 2}, [&](DistributedContext& context) {
    nn::ModelInputs stage_inputs = inputs;
    nn::ModelOutputs outputs;
    for (const int64_t number : {0, 1}) {
      const PipelineStageInfo stage{number, 2};
      Model model = build<Model>(small<Model>(), false, HiddenStatesAggregationMode::no, stage);
      auto sharded = TypeParam::parallelize_causal_lm(context, *model, stage, kInFloat64);
      make_real(*model);
      sharded.begin_step();
      const auto taken = model->infer_stage_inputs_from_pipeline_inputs({{"input_ids", inputs.input_ids}}, 1);
      if (number > 0) {
        stage_inputs.input_ids = at::Tensor();
        stage_inputs.hidden_states = outputs.hidden_states;
        EXPECT_EQ(taken.at("hidden_states").sizes(), outputs.hidden_states.sizes());
      }
      outputs = model->forward(stage_inputs);  // without position_ids: 0..T-1, also if a rank has T/2 of them
    }
    expect_near("logps", outputs.logps, expected, expected);
  });
}

// Between blocks each tp rank has other tokens, so the domain of the experts counts tp ranks as data-parallel ranks.
TEST(ParallelizeQwen3MoE, ShardsExpertsOverAllRanksThatHaveOtherTokens) {
  on_mesh({.tensor_parallel = 2}, [](DistributedContext& context) {
    auto model = build<Qwen3MoEForCausalLM>(small<Qwen3MoEForCausalLM>());
    const auto sharded = parallelize_qwen3_moe(context, *model);
    const auto& mixture = model->model->layers->at(0)->experts;
    const auto& experts = mixture->grouped_experts->up_proj->own_parameter("weight");
    EXPECT_EQ(*experts->layout().find(mesh::axis::ep_shard), Placement::shard(0));
    const auto& router = mixture->router->gate->own_parameter("weight");
    EXPECT_EQ(*router->layout().find(mesh::axis::tp), Placement::replicate());
  });
}

TYPED_TEST(Parallelize, RefusesUnsupportedCombinations) {
  using Model = typename TypeParam::CausalLM;
  const auto problem = [](const std::function<Model()>& make, const PipelineStageInfo& stage = {}) {
    return problem_on({.tensor_parallel = 4}, [&](DistributedContext& context) {
      Model model = make();
      TypeParam::parallelize_model(context, *model->model, stage, {});
    });
  };
  auto params = small<Model>();
  params.model.layer.num_attention_heads = 12;
  params.model.layer.num_key_value_heads = 3;
  EXPECT_THAT(
      problem([&] { return build<Model>(params); }),
      HasSubstr("num_key_value_heads: 3 cannot be split evenly over parallelism.tensor_parallel_degree = 4"));
  params = small<Model>();
  EXPECT_THAT(
      problem_on(
          {.context_parallel = 2},
          [&](DistributedContext& context) {
            Model model = build<Model>(params, false, HiddenStatesAggregationMode::mean);
            TypeParam::parallelize_model(context, *model->model, {}, {});
          }),
      HasSubstr("parallelism.context_parallel_degree: a snapshot of hidden states averages whole sequences"));
  EXPECT_THAT(
      problem([&] { return build<Model>(params); }, {1, 2}),
      HasSubstr("stage: the model was built for stage 0 of 1, but is parallelized as stage 1 of 2"));
  EXPECT_THAT(
      problem_on(
          {.tensor_parallel = 4},
          [&](DistributedContext& context) {
            Model model = build<Model>(params);
            auto sharded = TypeParam::parallelize(context, *model, kInFloat64);
            make_real(*model);
            sharded.begin_step();
            nn::ModelInputs inputs;
            inputs.input_ids = at::zeros({1, 6}, at::kLong);
            model->forward(inputs);
          }),
      HasSubstr("training.seq_len: sequences of 6 tokens cannot be split evenly over "
                "parallelism.tensor_parallel_degree = 4"));
}

// A layer with a module of its own kind, and an overload that knows it.
struct OwnLayer : nn::Module {
  OwnLayer() {
    block = register_module("block", nn::SwiGLU(8, 8));
    gain = register_module("gain", nn::Linear(8, 8, nn::Init::ones()));
  }
  nn::SwiGLU block{nullptr};
  nn::Linear gain{nullptr};
};
struct LayerWithAStyle : OwnLayer {};
void tensor_parallel(LayerWithAStyle& layer, DistributedContext& context) {
  shard::tensor_parallel(*layer.block, context);
  shard::on_parts(*layer.gain, context);
}

TEST(ParallelizeFamilies, UseTheStylesOfALayersOwnOverload) {
  on_mesh({.tensor_parallel = 2}, [](DistributedContext& context) {
    LayerWithAStyle layer;
    tensor_parallel_layer(layer, context);
    shard::require_tensor_layouts(layer, context);
  });
  EXPECT_THAT(
      problem_on(
          {.tensor_parallel = 2},
          [](DistributedContext& context) {
            OwnLayer layer;
            tensor_parallel_layer(layer, context);
          }),
      HasSubstr("module gain: this kind of module has no tensor-parallel style of its own "
                "(parallelism.tensor_parallel_degree = 2); overload tensor_parallel(Layer&, "));
  on_mesh({}, [](DistributedContext& context) {
    OwnLayer layer;
    tensor_parallel_layer(layer, context);
  });
}

TEST(ParallelizeFamilies, RefuseAModelOfAnotherFamily) {
  EXPECT_THAT(
      problem_on(
          {.tensor_parallel = 2},
          [](DistributedContext& context) {
            auto model = build<Llama3ForCausalLM>(small<Llama3ForCausalLM>());
            parallelize_qwen3_dense(context, *model);
          }),
      HasSubstr("model: expected a Qwen3Dense model with a causal-LM, classification or embedding head"));
}

}  // namespace
}  // namespace lehr::model
