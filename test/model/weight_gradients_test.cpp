// Whole models whose backward is split into dgrad and wgrad, with several micro-batches in flight: in pipeline stages,
// with checkpointing, and on meshes.
#include "lehr/ops/weight_gradients.h"

#include <gmock/gmock.h>

#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "test/shard/one_device.h"

namespace lehr::model {
namespace {

using mesh::DistributedContext;
using ops::WeightGradients;
using shard::test::expect_near;
using shard::test::make_real;
using shard::test::on_mesh;

struct Dense {
  using CausalLM = Qwen3DenseForCausalLM;
  static constexpr auto parallelize = parallelize_qwen3_dense;
};
struct Moe {
  using CausalLM = Qwen3MoEForCausalLM;
  static constexpr auto parallelize = parallelize_qwen3_moe;
};

template <class Family>
class ModelSplitBackward : public ::testing::Test {};
using Families = ::testing::Types<Dense, Moe>;
TYPED_TEST_SUITE(ModelSplitBackward, Families);

constexpr int64_t kLayers = 4;
constexpr size_t kMicrobatches = 3;

const std::vector<ActivationCheckpointing> kPolicies{
    ActivationCheckpointing(false), ActivationCheckpointing(true), ActivationCheckpointing::matmuls_of_every_nth(2)};

template <class Model>
Model build(const PipelineStageInfo& stage, ActivationCheckpointing checkpointing, bool tied = false) {
  typename Model::Impl::Parameters p{};
  auto& layer = p.model.layer;
  layer.hidden_size = 8;
  layer.intermediate_size = 12;
  layer.num_attention_heads = 4;
  layer.num_key_value_heads = 2;
  layer.rms_norm_eps = 1e-6;
  layer.head_dim = 4;
  if constexpr (requires { layer.moe; }) {
    layer.moe = {.num_experts = 4, .num_experts_per_tok = 2, .moe_intermediate_size = 12, .mlp_only_layers = {1}};
    layer.intermediate_size = 10;
  }
  p.model.num_hidden_layers = kLayers;
  p.model.rope_base = 100;
  p.model.max_position_ids = 64;
  p.model.split_vocab_size = {{"base", 11}, {"added", 6}};
  p.model.split_vocab_order = {"base", "added"};
  p.tie_word_embeddings = tied;
  return Model(p, stage, HiddenStatesAggregationMode::no, checkpointing);
}

struct Microbatch {
  nn::ModelInputs inputs;
  at::Tensor slope;  // weight of each token's loss
};

std::vector<Microbatch> make_microbatches() {
  at::manual_seed(1);
  std::vector<Microbatch> made(kMicrobatches);
  for (Microbatch& one : made) {
    one.inputs.input_ids = at::randint(0, 17, {2, 6});
    one.inputs.labels = at::randint(0, 17, {2, 6});
    one.slope = at::rand({2, 6}, at::kDouble) + 0.5;
  }
  return made;
}

template <class Forward, class Input, class Weight>
void interleave(const Forward& forward, const Input& input, const Weight& weight) {
  forward(0), forward(1), input(0), forward(2), input(1), weight(0), input(2), weight(1), weight(2);
}

void expect_same_gradients(const nn::Module& part, const nn::Module& whole, const std::string& what) {
  std::map<std::string, at::Tensor> expected;
  for (const auto& [name, parameter] : nn::named_parameters(whole)) {
    expected[name] = parameter->value().grad();
  }
  for (const auto& [name, parameter] : nn::named_parameters(part)) {
    EXPECT_EQ(parameter->value().grad().defined(), expected.at(name).defined()) << what << name;
    if (expected.at(name).defined() && parameter->value().grad().defined()) {
      EXPECT_TRUE(at::allclose(parameter->value().grad(), expected.at(name), 1e-12, 1e-13)) << what << name;
    }
  }
}

// The same arithmetic in the same order: the same bits as one full backward per micro-batch.
TYPED_TEST(ModelSplitBackward, EqualsFullBackwardsBitForBit) {
  using Model = typename TypeParam::CausalLM;
  const auto microbatches = make_microbatches();
  for (const bool tied : {false, true}) {
    Model whole = build<Model>({}, false, tied);
    make_real(*whole);
    for (const auto& [inputs, slope] : microbatches) {
      (whole->forward(inputs).logps * slope).sum().backward();
    }
    for (const auto checkpointing :
         {ActivationCheckpointing(false),
          ActivationCheckpointing(true),
          ActivationCheckpointing::every_nth(2),
          ActivationCheckpointing::matmuls_of_every_nth(1),
          ActivationCheckpointing::matmuls_of_every_nth(2)}) {
      Model model = build<Model>({}, checkpointing, tied);
      make_real(*model);
      std::vector<std::shared_ptr<WeightGradients>> wgrads(kMicrobatches);
      std::vector<at::Tensor> losses(kMicrobatches);
      interleave(
          [&](size_t i) {
            wgrads[i] = std::make_shared<WeightGradients>();
            const WeightGradients::Scope scope(wgrads[i]);
            losses[i] = (model->forward(microbatches[i].inputs).logps * microbatches[i].slope).sum();
          },
          [&](size_t i) {
            wgrads[i]->backward_input({losses[i]});
            losses[i].reset();
            EXPECT_GE(wgrads[i]->size(), 7U * kLayers) << "four projections and a feed-forward a layer";
          },
          [&](size_t i) { wgrads[i]->backward_weight(); });
      const auto expected = nn::named_parameters(*whole), found = nn::named_parameters(*model);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(at::equal(found[i].parameter->value().grad(), expected[i].parameter->value().grad()))
            << found[i].name;
      }
    }
  }
}

// Hidden states and their gradients are passed from stage to stage, as between ranks.
TYPED_TEST(ModelSplitBackward, StagesOfAPipelineEqualOneStage) {
  using Model = typename TypeParam::CausalLM;
  const auto microbatches = make_microbatches();
  Model whole = build<Model>({}, false);
  make_real(*whole);
  for (const auto& [inputs, slope] : microbatches) {
    (whole->forward(inputs).logps * slope).sum().backward();
  }
  for (const ActivationCheckpointing checkpointing : kPolicies) {
    struct Stage {
      Model model;
      std::vector<std::shared_ptr<WeightGradients>> wgrads;
      std::vector<at::Tensor> inputs, outputs;
    };
    std::vector<Stage> stages;
    for (int64_t s = 0; s < 3; ++s) {
      Stage stage{.model = build<Model>({s, 3}, checkpointing), .wgrads = {}, .inputs = {}, .outputs = {}};
      make_real(*stage.model);
      stages.push_back(stage);
    }
    interleave(
        [&](size_t i) {
          nn::ModelInputs inputs = microbatches[i].inputs;
          for (size_t s = 0; s < stages.size(); ++s) {
            Stage& stage = stages[s];
            if (s > 0) {
              inputs.input_ids = at::Tensor();
              inputs.hidden_states = stages[s - 1].outputs[i].detach().set_requires_grad(true);
            }
            stage.inputs.push_back(inputs.hidden_states);
            stage.wgrads.push_back(std::make_shared<WeightGradients>());
            const WeightGradients::Scope scope(stage.wgrads.back());
            const nn::ModelOutputs outputs = stage.model->forward(inputs);
            stage.outputs.push_back(
                s + 1 < stages.size() ? outputs.hidden_states : (outputs.logps * microbatches[i].slope).sum());
          }
        },
        [&](size_t i) {
          at::Tensor gradient;
          for (size_t s = stages.size(); s-- > 0;) {
            stages[s].wgrads[i]->backward_input({stages[s].outputs[i]}, {gradient});
            gradient = s > 0 ? stages[s].inputs[i].grad() : at::Tensor();
          }
        },
        [&](size_t i) {
          for (Stage& stage : stages) {
            stage.wgrads[i]->backward_weight();
          }
        });
    for (const Stage& stage : stages) {
      expect_same_gradients(*stage.model, *whole, checkpointing.every > 0 ? "checkpointed, " : "");
    }
  }
}

// Every data-parallel rank has the same sequences, so sums over ranks are multiples of the gradients of one device.
TYPED_TEST(ModelSplitBackward, EqualsOneDeviceOnMeshes) {
  using Model = typename TypeParam::CausalLM;
  const auto microbatches = make_microbatches();
  Model whole = build<Model>({}, false);
  make_real(*whole);
  for (const auto& [inputs, slope] : microbatches) {
    (whole->forward(inputs).logps * slope).sum().backward();
  }
  std::vector<mesh::DeviceMeshParameters> meshes{
      {.tensor_parallel = 2},
      {.data_parallel_shard = 2, .tensor_parallel = 2},
      {.data_parallel_replicate = 2, .data_parallel_shard = 2}};
  if (std::is_same_v<TypeParam, Moe>) {
    meshes.push_back({.data_parallel_shard = 4, .expert_parallel = 2});
    meshes.push_back({.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 4});
  }
  for (const auto& mesh : meshes) {
    SCOPED_TRACE(mesh.describe());
    for (const ActivationCheckpointing checkpointing : kPolicies) {
      for (const auto policy : {shard::ReshardPolicy::always, shard::ReshardPolicy::never}) {
        on_mesh(mesh, [&](DistributedContext& context) {
          Model model = build<Model>({}, checkpointing);
          shard::ParallelizeOptions options{.fully_shard = {.compute = at::kDouble, .reduce = at::kDouble}};
          options.fully_shard.reshard_after_forward = policy;
          auto sharded = TypeParam::parallelize(context, *model, options);
          make_real(*model);
          sharded.begin_step();
          sharded.set_last_microbatch(false);
          std::vector<std::shared_ptr<WeightGradients>> wgrads(kMicrobatches);
          std::vector<at::Tensor> losses(kMicrobatches);
          interleave(
              [&](size_t i) {
                wgrads[i] = std::make_shared<WeightGradients>();
                const WeightGradients::Scope scope(wgrads[i]);
                losses[i] = (model->forward(microbatches[i].inputs).logps * microbatches[i].slope).sum();
                sharded.set_last_microbatch(i + 1 == kMicrobatches);
              },
              [&](size_t i) {
                wgrads[i]->backward_input({losses[i]});
                losses[i].reset();
              },
              [&](size_t i) { wgrads[i]->backward_weight(); });
          sharded.finish_backward();
          const int64_t times = mesh.data_parallel_replicate * mesh.data_parallel_shard;
          const auto expected = nn::named_parameters(*whole), found = nn::named_parameters(*model);
          for (size_t i = 0; i < found.size(); ++i) {
            const nn::Parameter& parameter = *found[i].parameter;
            const at::Tensor sum = expected[i].parameter->value().grad() * times;
            expect_near(found[i].name, parameter.value().grad(), narrow_to(sum, parameter.box()), sum);
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace lehr::model
