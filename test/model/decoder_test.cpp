#include "lehr/model/decoder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/glm4_moe/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/minimax_m2/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/mixtral/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/qwen3_next/family.h"
#include "lehr/model/smollm3/family.h"
#include "lehr/nn/moe.h"

namespace lehr::model {
namespace {

struct Qwen3 {
  using CausalLM = Qwen3DenseForCausalLM;
  using Classification = Qwen3DenseForClassification;
  using Embedding = Qwen3DenseForEmbedding;
  static descriptor::ModelFamily family() { return qwen3_dense_family(); }
};
struct Llama {
  using CausalLM = Llama3ForCausalLM;
  using Classification = Llama3ForClassification;
  using Embedding = Llama3ForEmbedding;
  static descriptor::ModelFamily family() { return llama3_family(); }
};

struct Qwen3Moe {
  using CausalLM = Qwen3MoEForCausalLM;
  using Classification = Qwen3MoEForClassification;
  using Embedding = Qwen3MoEForEmbedding;
  static descriptor::ModelFamily family() { return qwen3_moe_family(); }
};
struct Gemma {
  using CausalLM = Gemma3ForCausalLM;
  using Classification = Gemma3ForClassification;
  using Embedding = Gemma3ForEmbedding;
  static descriptor::ModelFamily family() { return gemma3_family(); }
};

template <class Family>
class Decoder : public ::testing::Test {};
using Families = ::testing::Types<Qwen3, Qwen3Moe, Llama, Gemma>;
TYPED_TEST_SUITE(Decoder, Families);

template <class Model>
typename Model::Impl::Parameters small_parameters() {
  typename Model::Impl::Parameters p{};
  auto& layer = p.model.layer;
  layer.hidden_size = 8;
  layer.intermediate_size = 12;
  layer.num_attention_heads = 4;
  layer.num_key_value_heads = 2;
  layer.rms_norm_eps = 1e-6;
  layer.head_dim = 4;
  layer.initializer_range = 0.4;
  if constexpr (requires { layer.moe; }) {
    layer.moe = {.num_experts = 5, .num_experts_per_tok = 2, .moe_intermediate_size = 12, .mlp_only_layers = {1}};
    layer.intermediate_size = 10;
  }
  if constexpr (requires { layer.pattern; }) {
    layer.pattern = {.sliding_window = 3, .sliding = {true, false}};
    p.model.pattern = layer.pattern;
    p.model.sliding_rope = Rope{.theta = 7};
    p.model.embedding_factor = 3;
  }
  p.model.num_hidden_layers = 5;
  p.model.rope_base = 100;
  p.model.max_position_ids = 64;
  p.model.split_vocab_size = {{"base", 11}, {"added", 6}};
  p.model.split_vocab_order = {"base", "added"};
  p.model.pipeline_num_virtual_layers_post = 1;
  return p;
}

template <class Model>
Model build(
    const PipelineStageInfo& stage,
    ActivationCheckpointing checkpointing,
    HiddenStatesAggregationMode mode = HiddenStatesAggregationMode::mean) {
  Model model(small_parameters<Model>(), stage, mode, checkpointing);
  nn::materialize(*model, at::kCPU, at::kDouble);
  model->reset_parameters({.seed = 4});
  return model;
}

std::map<std::string, at::Tensor> gradients(const nn::Module& model) {
  std::map<std::string, at::Tensor> found;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    found[name] = parameter->value().grad();
  }
  return found;
}

// The same arithmetic in the same order: bit-identical, forward and backward.
TYPED_TEST(Decoder, SplitOverStagesEqualsOneStage) {
  using Model = typename TypeParam::CausalLM;
  at::manual_seed(1);
  const at::Tensor ids = at::randint(0, 17, {2, 6});
  const at::Tensor labels = at::randint(0, 17, {2, 6});
  const at::Tensor mask = at::ones({2, 6});
  nn::ModelInputs inputs;
  inputs.input_ids = ids;
  inputs.labels = labels;
  inputs.hidden_states_agg_mask = mask;
  auto whole = build<Model>({0, 1}, false);
  const auto expected = whole->forward(inputs);
  (expected.logps.sum() + expected.hidden_states_snapshot.square().sum()).backward();
  const auto expected_gradients = gradients(*whole);

  for (const int64_t stages : {2, 3}) {
    for (const auto checkpointing :
         {ActivationCheckpointing(false),
          ActivationCheckpointing(true),
          ActivationCheckpointing::every_nth(2),
          ActivationCheckpointing::matmuls_of_every_nth(1),
          ActivationCheckpointing::matmuls_of_every_nth(2)}) {
      std::vector<Model> parts;
      at::Tensor hidden, snapshot;
      nn::ModelOutputs outputs;
      for (int64_t s = 0; s < stages; ++s) {
        parts.push_back(build<Model>({s, stages}, checkpointing));
        nn::ModelInputs stage_inputs = inputs;
        if (s > 0) {
          stage_inputs.input_ids = at::Tensor();
        }
        stage_inputs.hidden_states = hidden;
        stage_inputs.hidden_states_snapshot = snapshot;
        outputs = parts.back()->forward(stage_inputs);
        const auto promised = parts.back()->infer_stage_outputs_from_pipeline_inputs({{"input_ids", ids}}, 1);
        EXPECT_EQ(promised.at("hidden_states").sizes(), outputs.hidden_states.sizes());
        EXPECT_EQ(promised.at("hidden_states").scalar_type(), outputs.hidden_states.scalar_type());
        EXPECT_EQ(promised.at("hidden_states_snapshot").sizes(), outputs.hidden_states_snapshot.sizes());
        EXPECT_EQ(promised.count("logps"), s + 1 == stages ? 1U : 0U);
        if (s > 0) {
          const auto taken = parts.back()->infer_stage_inputs_from_pipeline_inputs({{"input_ids", ids}}, 1);
          EXPECT_EQ(taken.at("hidden_states").sizes(), hidden.sizes());
          EXPECT_EQ(taken.at("hidden_states_snapshot").sizes(), snapshot.sizes());
        }
        hidden = outputs.hidden_states;
        snapshot = outputs.hidden_states_snapshot;
      }
      EXPECT_TRUE(at::equal(outputs.logps, expected.logps));
      EXPECT_TRUE(outputs.nll().is_same(outputs.logps));
      EXPECT_TRUE(at::equal(outputs.hidden_states_snapshot, expected.hidden_states_snapshot));
      (outputs.logps.sum() + outputs.hidden_states_snapshot.square().sum()).backward();
      size_t count = 0;
      for (const auto& part : parts) {
        for (const auto& [name, gradient] : gradients(*part)) {
          EXPECT_TRUE(at::allclose(gradient, expected_gradients.at(name), 1e-12, 1e-13)) << name;
          ++count;
        }
      }
      EXPECT_EQ(count, expected_gradients.size());
    }
  }
}

TYPED_TEST(Decoder, SplitsABatchIntoMicrobatches) {
  using Model = typename TypeParam::CausalLM;
  auto model = build<Model>({0, 1}, false);
  const TensorDict inputs{{"input_ids", at::zeros({6, 5}, at::kLong)}};
  EXPECT_EQ(
      model->infer_stage_inputs_from_pipeline_inputs(inputs, 3).at("input_ids").sizes(), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(
      model->infer_stage_outputs_from_pipeline_inputs(inputs, 3).at("logps").sizes(), (std::vector<int64_t>{2, 5}));
  EXPECT_THROW(model->infer_stage_inputs_from_pipeline_inputs(inputs, 4), Error);
}

// Both stages start from the same bits, and the sum of their gradients is the gradient of the one table of a whole
// model.
TYPED_TEST(Decoder, HoldsATiedTableOnFirstAndLastStageUnderOneName) {
  using Model = typename TypeParam::CausalLM;
  auto tied = small_parameters<Model>();
  tied.tie_word_embeddings = true;
  const auto make = [&](const PipelineStageInfo& stage) {
    Model model(tied, stage, HiddenStatesAggregationMode::no, ActivationCheckpointing{});
    nn::materialize(*model, at::kCPU, at::kDouble);
    model->reset_parameters({.seed = 4});
    return model;
  };
  Model whole = make({});
  Model first = make({0, 2});
  Model last = make({1, 2});
  nn::ModelInputs inputs;
  inputs.input_ids = at::tensor({1, 2, 13, 4, 5, 16}).view({2, 3});
  inputs.labels = at::tensor({2, 13, 4, 5, 16, 1}, at::kLong).view({2, 3});
  const at::Tensor wanted = whole->forward(inputs).logps;
  wanted.sum().backward();
  nn::ModelInputs second;
  second.hidden_states = first->forward({.input_ids = inputs.input_ids}).hidden_states;
  second.labels = inputs.labels;
  const at::Tensor found = last->forward(second).logps;
  EXPECT_TRUE(at::equal(found, wanted));
  found.sum().backward();
  const auto one = gradients(*whole);
  const auto head = gradients(*first);
  const auto tail = gradients(*last);
  for (const std::string segment : {"base", "added"}) {
    const std::string name = "model.embed_tokens.token_embedding." + segment + ".weight";
    // The two parts are summed in another order here than by autograd.
    EXPECT_TRUE(at::allclose(head.at(name) + tail.at(name), one.at(name), 1e-14, 1e-15)) << name;
  }
}

TYPED_TEST(Decoder, ScoresSequences) {
  using Model = typename TypeParam::Classification;
  auto params = small_parameters<typename TypeParam::CausalLM>();
  typename Model::Impl::Parameters p{.model = params.model, .num_labels = 3};
  Model model(p, PipelineStageInfo{}, HiddenStatesAggregationMode::no, ActivationCheckpointing{});
  nn::materialize(*model, at::kCPU, at::kDouble);
  model->reset_parameters({.seed = 4});
  nn::ModelInputs inputs;
  inputs.input_ids = at::tensor({1, 2, 3, 4, 5, 6}).view({2, 3});
  inputs.pooling_mask = at::tensor({0, 0, 1, 0, 1, 0}).view({2, 3});
  const auto outputs = model->forward(inputs);
  EXPECT_EQ(outputs.scores.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(outputs.hidden_states_snapshot.defined());
  EXPECT_THROW(model->logits(outputs.hidden_states), Error);
}

TYPED_TEST(Decoder, ScoresTokens) {
  using Model = typename TypeParam::Classification;
  auto params = small_parameters<typename TypeParam::CausalLM>();
  typename Model::Impl::Parameters p{.model = params.model, .num_labels = 3, .per_token = true, .score_bias = true};
  Model model(p, PipelineStageInfo{}, HiddenStatesAggregationMode::no, ActivationCheckpointing{});
  nn::materialize(*model, at::kCPU, at::kDouble);
  model->reset_parameters({.seed = 4});
  nn::ModelInputs inputs;
  inputs.input_ids = at::tensor({1, 2, 3, 4, 5, 6}).view({2, 3});
  const auto outputs = model->forward(inputs);
  EXPECT_EQ(outputs.scores.sizes(), (std::vector<int64_t>{2, 3, 3}));
  const auto promised = model->infer_stage_outputs_from_pipeline_inputs({{"input_ids", inputs.input_ids}}, 1);
  EXPECT_EQ(promised.at("scores").sizes(), outputs.scores.sizes());
  EXPECT_EQ(promised.at("scores").scalar_type(), outputs.scores.scalar_type());
}

TYPED_TEST(Decoder, EmbedsSequences) {
  using Model = typename TypeParam::Embedding;
  const auto backbone = small_parameters<typename TypeParam::CausalLM>().model;
  nn::ModelInputs inputs;
  inputs.input_ids = at::tensor({1, 2, 3, 4, 5, 6}).view({2, 3});
  inputs.pooling_mask = at::tensor({0, 0, 1, 0, 1, 0}).view({2, 3});
  auto run = [&](typename Model::Impl::Parameters p) {
    Model model(p, PipelineStageInfo{}, HiddenStatesAggregationMode::no, ActivationCheckpointing{});
    nn::materialize(*model, at::kCPU, at::kDouble);
    model->reset_parameters({.seed = 4});
    const auto outputs = model->forward(inputs);
    const auto promised = model->infer_stage_outputs_from_pipeline_inputs({{"input_ids", inputs.input_ids}}, 1);
    EXPECT_EQ(promised.at("embeddings").sizes(), outputs.embeddings.sizes());
    EXPECT_EQ(promised.at("embeddings").scalar_type(), outputs.embeddings.scalar_type());
    return outputs;
  };
  const auto plain = run({.model = backbone});
  EXPECT_TRUE(plain.embeddings.equal(at::stack({plain.hidden_states[0][2], plain.hidden_states[1][1]})));
  const auto projected = run({.model = backbone, .embedding_dim = 3, .normalize = true});
  EXPECT_EQ(projected.embeddings.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(at::allclose(projected.embeddings.norm(2, -1), at::ones({2}, at::kDouble), 1e-14));
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

TEST(Families, ConstructSeventyBillionParametersOnMeta) {
  const int64_t before = resident_bytes();
  const auto shape = llama3_family().flavors.at("70B")();
  const auto model = shape->build({});
  EXPECT_EQ(nn::count_parameters(*model), 70'553'706'496);
  // Milliseconds, since nothing is allocated.
  EXPECT_LT(resident_bytes() - before, 100 << 20);
}

// Expected values are those of torchtitan's own formula.
TEST(Families, CountParametersAndFlopsLikeTorchtitan) {
  struct Row {
    const char* flavor;
    int64_t parameters, flops;
  };
  for (const Row& row :
       {Row{"debugmodel", 31'987'968, 997'234'176},
        Row{"0.6B", 596'049'920, 6'394'871'808},
        Row{"1.7B", 1'720'574'976, 13'142'022'144},
        Row{"4B", 4'022'468'096, 31'382'565'888},
        Row{"8B", 8'190'735'360, 52'658'190'336},
        Row{"14B", 14'768'307'200, 94'008'698'880},
        Row{"32B", 32'762'123'264, 217'675'069'440}}) {
    const auto counts = qwen3_dense_family().flavors.at(row.flavor)()->get_nparams_and_flops(4096);
    EXPECT_EQ(counts.num_parameters, row.parameters) << row.flavor;
    EXPECT_EQ(counts.flops_per_token, row.flops) << row.flavor;
  }
  for (const Row& row :
       {Row{"debugmodel", 315'758'848, 1'111'266'816},
        Row{"30B-A3B", 30'532'122'624, 27'914'883'072},
        Row{"235B-A22B", 235'093'634'560, 167'260'001'280}}) {
    const auto counts = qwen3_moe_family().flavors.at(row.flavor)()->get_nparams_and_flops(4096);
    EXPECT_EQ(counts.num_parameters, row.parameters) << row.flavor;
    EXPECT_EQ(counts.flops_per_token, row.flops) << row.flavor;
  }
  for (const Row& row :
       {Row{"1B", 1'235'814'400, 10'636'111'872},
        Row{"3B", 3'212'749'824, 27'732'215'808},
        Row{"8B", 8'030'261'248, 57'914'449'920},
        Row{"70B", 70'553'706'496, 481'442'709'504},
        Row{"405B", 405'853'388'800, 2'625'449'459'712}}) {
    const auto counts = llama3_family().flavors.at(row.flavor)()->get_nparams_and_flops(8192);
    EXPECT_EQ(counts.num_parameters, row.parameters) << row.flavor;
    EXPECT_EQ(counts.flops_per_token, row.flops) << row.flavor;
  }
}

// Of the published checkpoints, as their model cards and safetensors headers say; without the layers for multi-token
// prediction of DeepSeek-V3 and GLM-4.5.
TEST(Families, CountThePublishedParameters) {
  const std::vector<std::tuple<descriptor::ModelFamily, std::string, int64_t>> rows{
      {qwen2_family(), "0.5B", 494'032'768},           {qwen2_family(), "1.5B", 1'543'714'304},
      {qwen2_family(), "3B", 3'085'938'688},           {qwen2_family(), "7B", 7'615'616'512},
      {qwen2_family(), "14B", 14'770'033'664},         {qwen2_family(), "32B", 32'763'876'352},
      {qwen2_family(), "72B", 72'706'203'648},         {mistral_family(), "7B-v0.1", 7'241'732'096},
      {mistral_family(), "7B-v0.3", 7'248'023'552},    {mistral_family(), "Nemo-12B", 12'247'782'400},
      {mistral_family(), "Small-24B", 23'572'403'200}, {smollm3_family(), "3B", 3'075'098'624},
      {mixtral_family(), "8x7B", 46'702'792'704},      {mixtral_family(), "8x22B", 140'620'634'112},
      {deepseek_v3_family(), "671B", 671'026'404'352}, {glm4_moe_family(), "Air-106B", 106'852'245'504},
      {glm4_moe_family(), "355B", 352'797'814'784},    {olmo2_family(), "1B", 1'484'916'736},
      {olmo2_family(), "7B", 7'298'617'344},           {olmo2_family(), "13B", 13'716'198'400},
      {olmo2_family(), "32B", 32'234'279'936},         {olmo3_family(), "7B", 7'298'011'136},
      {gemma3_family(), "270M", 268'098'176},          {gemma3_family(), "1B", 999'885'952},
      {gemma3_family(), "4B", 3'880'263'168},          {qwen3_next_family(), "80B-A3B", 79'674'391'296},
      {gpt_oss_family(), "20b", 20'914'757'184},       {gpt_oss_family(), "120b", 116'829'156'672}};
  const auto count = [](const descriptor::ModelFamily& family, const std::string& flavor) {
    return family.from_flavor(flavor)->get_nparams_and_flops(64).num_parameters;
  };
  for (const auto& [family, flavor, parameters] : rows) {
    EXPECT_EQ(count(family, flavor), parameters) << family.name << " " << flavor;
  }
  EXPECT_EQ(count(deepseek_v3_family(), "Kimi-K2-1T"), 1'026'408'209'408);
  EXPECT_EQ(count(minimax_m2_family(), "230B-A10B"), 228'689'748'992);
}

TEST(LayerPattern, RepeatsAndShifts) {
  const LayerPattern pattern{.sliding_window = 5, .sliding = {true, true, false}, .rotary = {true, false}};
  const LayerPattern shifted = pattern.shifted(4);
  for (int64_t layer = 0; layer < 7; ++layer) {
    EXPECT_EQ(pattern.slides(layer), layer % 3 != 2);
    EXPECT_EQ(pattern.rotates(layer), layer % 2 == 0);
    EXPECT_EQ(shifted.window(layer + 4), pattern.window(layer)) << layer;
    EXPECT_EQ(shifted.rotates(layer + 4), pattern.rotates(layer)) << layer;
  }
  EXPECT_FALSE(LayerPattern{}.shifted(1).slides(0));
  EXPECT_TRUE(LayerPattern{}.shifted(1).rotates(0));
}

// sqrt(3072) = 55.4256 is 55.5 in bfloat16, as transformers computes it for Gemma.
TEST(ScaledEmbeddings, AreMultipliedByTheFactorRoundedToTheirDtype) {
  const double factor = std::sqrt(3072.0);
  const at::Tensor x = at::linspace(0.1, 2, 999).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(scaled_embeddings(x, factor), x * at::scalar_tensor(55.5, at::kBFloat16)));
  EXPECT_TRUE(at::equal(scaled_embeddings(x.to(at::kDouble), factor), x.to(at::kDouble) * factor));
  EXPECT_TRUE(scaled_embeddings(x, 1).is_same(x));
}

// A window of w tokens leaves w T - w^2 / 2 of the T^2 / 2 pairs.
TEST(Families, CountWindowsAsTheTokensThatTheyLeave) {
  const auto of_layers = [](int64_t tokens) {
    return gemma3_family().from_flavor("debugmodel")->get_nparams_and_flops(tokens).layer_flops_per_token;
  };
  const auto cut = of_layers(36), whole = of_layers(9);  // the window has nine tokens
  EXPECT_EQ(whole[0], whole[1]);
  const int64_t heads = 16 * 16;
  EXPECT_EQ(cut[1] - whole[1], 6 * heads * (36 - 9));
  EXPECT_EQ(cut[0] - whole[0], 6 * heads * (2 * 9 - 81 / 36 - 9));
}

TEST(Families, CountTheFlopsOfEachLayer) {
  for (const auto& family : {qwen3_dense_family(), qwen3_moe_family(), llama3_family()}) {
    for (const auto& [flavor, make] : family.flavors) {
      const auto args = make();
      const auto counts = args->get_nparams_and_flops(4096);
      const auto& layers = counts.layer_flops_per_token;
      ASSERT_EQ(static_cast<int64_t>(layers.size()), args->build({})->num_local_layers()) << flavor;
      EXPECT_EQ(layers.front(), layers.back()) << flavor;
      // The remainder is the head's table and the norm before it.
      const Node config = args->to_hf_config("float32");
      const int64_t width = config.at("hidden_size").as_int();
      EXPECT_EQ(
          counts.causal_flops_per_token - std::accumulate(layers.begin(), layers.end(), int64_t{0}),
          6 * width * (args->vocab_size() + 1))
          << flavor;
    }
  }
  // A layer without experts counts its FFN.
  const auto args = qwen3_moe_family().from_flavor("debugmodel");
  const auto of_all = args->get_nparams_and_flops(64).layer_flops_per_token;
  args->apply({.mlp_only_layers = {1}});
  const auto of_some = args->get_nparams_and_flops(64).layer_flops_per_token;
  EXPECT_EQ(of_some[0], of_all[0]);
  EXPECT_EQ(of_some[2], of_all[2]);
  // Eight active experts of width 768 and the router of 64 experts, instead of an FFN of width 3072; hidden size 256.
  EXPECT_EQ(of_some[1] - of_all[1], 6 * 256 * (3 * (3072 - 8 * 768) - 64));
}

TEST(Families, RefuseADuplicateName) {
  descriptor::ModelFamilies families;
  families.add(qwen3_dense_family());
  EXPECT_THROW(families.add(qwen3_dense_family()), Error);
  EXPECT_THROW(families.from_flavor("qwen3", "0.7B"), Error);
  EXPECT_THROW(families.from_flavor("qwne3", "0.6B"), Error);
}

TEST(Families, WriteAConfigThatReadsBackTheSame) {
  for (const auto& family :
       {qwen3_dense_family(),
        qwen3_moe_family(),
        llama3_family(),
        qwen2_family(),
        mistral_family(),
        smollm3_family(),
        olmo2_family(),
        olmo3_family(),
        gemma3_family()}) {
    for (const auto& [flavor, make] : family.flavors) {
      const Node written = make()->to_hf_config("bfloat16");
      const auto again = family.from_hf_config(parse_json(to_json(written), "config.json"));
      EXPECT_EQ(to_json(again->to_hf_config("bfloat16")), to_json(written)) << family.name << " " << flavor;
      EXPECT_EQ(again->get_nparams_and_flops(64).num_parameters, make()->get_nparams_and_flops(64).num_parameters);
    }
  }
}

TEST(Families, NormalizeTheExpertWeightsOfATokenIfTheConfigSaysSo) {
  for (const bool normalizes : {true, false}) {
    Node config = qwen3_moe_family().flavors.at("debugmodel")()->to_hf_config("float32");
    config.set("norm_topk_prob", Node(normalizes));
    const auto model = qwen3_moe_family().from_hf_config(config)->build({});
    const auto mixtures = nn::moe_layers(*model);
    ASSERT_FALSE(mixtures.empty());
    for (const nn::MoELayerImpl* mixture : mixtures) {
      const at::Tensor scores = at::full({1, 2}, 0.25);
      EXPECT_EQ(mixture->router->weights(scores).sum().item<double>(), normalizes ? 1 : 0.5);
    }
  }
}

TEST(Families, RefuseUnsupportedConfigs) {
  for (const auto& [key, value] :
       {std::pair{"use_sliding_window", "true"}, std::pair{"hidden_act", "\"gelu\""}, std::pair{"mlp_bias", "true"}}) {
    Node config = llama3_family().flavors.at("1B")()->to_hf_config("float32");
    config.set(key, parse_json(value, "config.json"));
    EXPECT_THROW(llama3_family().from_hf_config(config), Error) << key;
  }
}

}  // namespace
}  // namespace lehr::model
