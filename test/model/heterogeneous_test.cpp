// Heterogeneous models against a decoder that is written out in ATen, in float64: outputs, gradients, generation,
// stages and counts.
#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "test/base/error_of.h"
#include "test/model/plain_decoder.h"
#include "test/shard/one_device.h"

namespace lehr::model::test {
namespace {

using shard::test::make_real;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct HeterogeneousCase {
  std::string name, model_type;
  std::vector<LayerShape> layers;
};

const std::vector<HeterogeneousCase> kCases{
    {"Qwen3", "qwen3", kMixed},
    {"Qwen3WithHoles", "qwen3", kWithHoles},
    {"Llama", "llama", kMixed},
    {"LlamaWithHoles", "llama", kWithHoles},
    {"Olmo2", "olmo2", kMixed},
    {"Olmo2WithHoles", "olmo2", kWithHoles},
    {"Qwen2", "qwen2", kMixed},
    {"Qwen2WithHoles", "qwen2", kWithHoles},
    {"Mistral", "mistral", kMixed},
    {"SmolLM3", "smollm3", kMixed},
    {"SmolLM3WithHoles", "smollm3", kWithHoles},
    {"Olmo3", "olmo3", kMixed},
    {"Olmo3WithHoles", "olmo3", kWithHoles},
    {"Gemma3", "gemma3_text", kMixed},
    {"Gemma3WithHoles", "gemma3_text", kWithHoles},
    {"Mixtral", "mixtral", kMixtures},
    {"GptOss", "gpt_oss", kOnlyMixtures},
    {"Qwen3Moe", "qwen3_moe", kMixtures},
    {"Glm4Moe", "glm4_moe", kSharedMixtures},
    {"MiniMaxM2", "minimax_m2", kMixtures},
    {"DeepseekV3", "deepseek_v3", kLatentMixtures},
    {"Qwen3Next", "qwen3_next", kDeltaMixtures},
    {"Qwen3WithLinear", "qwen3", kWithLinear},
    {"LlamaWithLinear", "llama", kWithLinear},
    {"Olmo2WithLinear", "olmo2", kWithLinear},
    {"Gemma3WithLinear", "gemma3_text", kWithLinear},
    {"GptOssWithLinear", "gpt_oss", kMixturesWithLinear},
    {"Qwen3MoeWithLinear", "qwen3_moe", kMixturesWithLinear},
    {"MiniMaxM2WithLinear", "minimax_m2", kMixturesWithLinear},
    {"Glm4MoeWithLinear", "glm4_moe", kSharedMixturesWithLinear},
    {"Qwen3WithWindows", "qwen3", kWithWindows},
    {"LlamaWithWindows", "llama", kWithWindows},
    {"SmolLM3WithWindows", "smollm3", kWithWindows},
    {"Olmo3WithWindows", "olmo3", kWithWindows},
    {"Gemma3WithWindows", "gemma3_text", kWithWindows},
    {"MixtralWithWindows", "mixtral", kMixturesWithWindows},
    {"GptOssWithWindows", "gpt_oss", kMixturesWithWindows},
    {"MiniMaxM2WithWindows", "minimax_m2", kMixturesWithWindows},
    {"Glm4MoeWithWindows", "glm4_moe", kWithWindows},
    {"Qwen3MoeWithWindows", "qwen3_moe", kMixturesWithWindows},
    {"Glm4MoeWithoutExperts", "glm4_moe", kMixed},
    {"Qwen3MoeWithoutExperts", "qwen3_moe", kMixed}};

class Heterogeneous : public ::testing::TestWithParam<HeterogeneousCase> {
 protected:
  std::unique_ptr<descriptor::ModelArgs> args = args_of(GetParam().model_type, GetParam().layers);

  // Weights of latent attention.
  static int64_t latent_parameters() {
    constexpr int64_t kQuery = kPlainDim + kHeadDim, kKeyAndValue = kPlainDim + kValueDim;
    return kHidden * kQueryLatent + kQueryLatent + kQueryLatent * kHeads * kQuery + kHidden * (kLatent + kHeadDim) +
           kLatent + kLatent * kHeads * kKeyAndValue + kHeads * kValueDim * kHidden;
  }

  // Weights of gated DeltaNet: projections, convolutions over four tokens, dt_bias and A_log, the norm.
  static int64_t delta_parameters() {
    constexpr int64_t kKeys = kDeltaKeyHeads * kDeltaKeyDim, kValues = kDeltaHeads * kDeltaValueDim;
    return kHidden * (2 * kKeys + 2 * kValues + 2 * kDeltaHeads) + 4 * (2 * kKeys + kValues) + 2 * kDeltaHeads +
           kDeltaValueDim + kValues * kHidden;
  }

  // Weights of the attention of a layer that has it.
  static int64_t parameters_of_attention(const LayerShape& layer, int64_t index) {
    const std::string& type = GetParam().model_type;
    const int64_t gates = type == "qwen3_next" ? kHidden * kHeadDim * kHeads : 0;
    return type == "deepseek_v3" ? latent_parameters()
           : is_delta(type, index)
               ? delta_parameters()
               : 2 * kHidden * kHeadDim * (kHeads + layer.kv_heads) + gates + vectors_of_attention(layer);
  }

  // Weights of the norms of queries and keys, biases, and sinks.
  static int64_t vectors_of_attention(const LayerShape& layer) {
    const std::string& type = GetParam().model_type;
    const int64_t of_projections = kHeadDim * (kHeads + 2 * layer.kv_heads);
    const int64_t biases = has_attention_bias(type) || type == "gpt_oss" ? of_projections + kHidden
                           : type == "qwen2" || type == "glm4_moe"       ? of_projections
                                                                         : 0;
    return type == "llama" || type == "mistral" || type == "mixtral" || type == "smollm3" || type == "qwen2" ? biases
           : type == "gpt_oss"           ? biases + kHeads
           : kind_of(type).norm_over_all ? biases + kHeadDim * (kHeads + layer.kv_heads)
                                         : biases + 2 * kHeadDim;
  }

  // Biases of an expert.
  static int64_t vectors_of_expert(const LayerShape& layer) {
    return GetParam().model_type == "gpt_oss" ? 2 * layer.width + kHidden : 0;
  }

  // Norms of a sub-block.
  static int64_t norms() {
    const Kind kind = kind_of(GetParam().model_type);
    return int64_t{kind.norm_before} + int64_t{kind.norm_after};
  }

  std::shared_ptr<nn::Model> build(const descriptor::BuildOptions& options = {}) const {
    auto model = args->build(options);
    make_real(*model);
    return model;
  }
};
INSTANTIATE_TEST_SUITE_P(Families, Heterogeneous, ::testing::ValuesIn(kCases), [](const auto& one) {
  return one.param.name;
});

at::Tensor token_ids() {
  at::manual_seed(3);
  return at::randint(kVocabulary, {2, 7});
}

// Sums of some dozens of terms in another order: 1e-12 of the largest leaves room.
void expect_equal(const std::string& what, const at::Tensor& found, const at::Tensor& wanted) {
  ASSERT_TRUE(found.defined()) << what;
  const double scale = wanted.detach().abs().max().item<double>();
  EXPECT_GT(scale, 0) << what << ": zeros show nothing";
  EXPECT_LE((found - wanted).detach().abs().max().item<double>(), 1e-12 * scale) << what;
}

TEST_P(Heterogeneous, EqualsThePlainModel) {
  const at::Tensor ids = token_ids();
  const at::Tensor labels = ids.roll(-1, 1);
  for (const bool checkpointing : {false, true}) {
    const auto model = build({.checkpointing = checkpointing});
    Weights weights = copies_of(*model);
    const at::Tensor wanted_states = plain_decoder(ids, weights, GetParam().layers, GetParam().model_type);
    const at::Tensor wanted =
        -at::log_softmax(plain_logits(wanted_states, weights, false), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1);
    wanted.sum().backward();
    const nn::ModelOutputs outputs = model->forward({.input_ids = ids, .labels = labels});
    expect_equal("hidden_states", outputs.hidden_states, wanted_states);
    expect_equal("logps", outputs.logps, wanted);
    outputs.logps.sum().backward();
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      if (!parameter->is_state()) {
        expect_equal(name, parameter->value().grad(), weights.at(name).grad());
      }
    }
  }
}

TEST_P(Heterogeneous, HasTheParametersOfItsLayersAndNoOthers) {
  int64_t expected = 2 * kVocabulary * kHidden + kHidden;
  int64_t multiplied = kVocabulary * kHidden + kHidden;
  const std::string& type = GetParam().model_type;
  const bool latent = type == "deepseek_v3";
  int64_t states = 0;  // FLOPs of gated DeltaNet per token
  int64_t seen = 0;    // twice the mean number of tokens that a token of 100 sees, over all layers
  std::vector<int64_t> cache;
  for (const LayerShape& layer : GetParam().layers) {
    int64_t own = 0;
    int64_t idle = 0;
    const auto index = static_cast<int64_t>(cache.size());
    const bool delta = is_delta(type, index);
    if (layer.kv_heads > 0) {
      own += norms() * kHidden + parameters_of_attention(layer, index);
      const int64_t window = window_of(type, index, layer);
      seen += delta ? 0 : window > 0 ? 2 * window : 100;
      states += delta ? 3 * 6 * kDeltaHeads * kDeltaKeyDim * kDeltaValueDim : 0;
    }
    own += (layer.kv_heads == kLinear ? (norms() + kHidden) * kHidden : 0) +
           (layer.width == kLinear ? (norms() + kHidden) * kHidden : 0);
    const int64_t block = 3 * kHidden * layer.width + vectors_of_expert(layer);
    const int64_t router = kHidden + (GetParam().model_type == "gpt_oss" ? 1 : 0);  // per expert
    if (layer.width > 0) {
      own += norms() * kHidden + block * std::max<int64_t>(1, layer.experts) + layer.experts * router +
             3 * kHidden * layer.shared + (type == "qwen3_next" && layer.shared > 0 ? kHidden : 0);
      idle = block * std::max<int64_t>(0, layer.experts - layer.top_k);
    }
    expected += own;
    multiplied += own - (layer.experts > 0 ? idle : 0);
    cache.push_back(layer.kv_heads <= 0 || delta ? 0 : latent ? kLatent + kHeadDim : 2 * layer.kv_heads * kHeadDim);
  }
  const auto counts = args->get_nparams_and_flops(100);
  EXPECT_EQ(counts.num_parameters, expected);
  const int64_t width = latent ? kPlainDim + kHeadDim + kValueDim : 2 * kHeadDim;  // of a query and a value
  EXPECT_EQ(counts.flops_per_token, 6 * multiplied + states + 6 * kHeads * width * seen);
  EXPECT_EQ(counts.causal_flops_per_token, 6 * multiplied + states + 3 * kHeads * width * seen);
  EXPECT_EQ(counts.kv_cache_per_token, cache);
  EXPECT_TRUE(args->is_heterogeneous());
}

TEST_P(Heterogeneous, GeneratesWithCachesOfItsAttentionOnly) {
  const c10::InferenceMode inference;
  const at::Tensor ids = token_ids();
  const auto model = build();
  const at::Tensor whole = model->forward({.input_ids = ids}).hidden_states;
  nn::KeyValueCaches caches(static_cast<size_t>(model->num_local_layers()));
  std::vector<at::Tensor> parts;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 4}, {4, 1}, {5, 1}, {6, 1}}) {
    nn::ModelInputs inputs{.input_ids = ids.narrow(1, first, count)};
    inputs.caches = &caches;
    parts.push_back(model->forward(inputs).hidden_states);
  }
  expect_equal("token by token", at::cat(parts, 1), whole);
  for (size_t i = 0; i < caches.size(); ++i) {
    EXPECT_EQ(caches[i].length(), GetParam().layers[i].kv_heads > 0 ? 7 : 0) << "layer " << i;
    EXPECT_EQ(caches[i].bytes() > 0, GetParam().layers[i].kv_heads > 0 && caches[i].states().empty()) << "layer " << i;
  }
}

TEST_P(Heterogeneous, IsTheSameInStages) {
  const at::Tensor ids = token_ids();
  const at::Tensor labels = ids.roll(-1, 1);
  const auto whole = build();
  const at::Tensor wanted = whole->forward({.input_ids = ids, .labels = labels}).logps;
  for (const int64_t stages : {2, 3}) {
    if (GetParam().layers.size() == kWithHoles.size() && stages == 3) {
      continue;  // its third layer alone would be a stage: refused below
    }
    nn::ModelInputs inputs{.input_ids = ids, .labels = labels};
    nn::ModelOutputs outputs;
    int64_t parameters = 0;
    for (int64_t stage = 0; stage < stages; ++stage) {
      const auto part = build({.stage = {stage, stages}});
      parameters += nn::count_parameters(*part);
      outputs = part->forward(inputs);
      const auto& shapes = dynamic_cast<const pipeline::ModuleSupportsPipelining&>(*part);
      const auto announced = shapes.infer_stage_outputs_from_pipeline_inputs({{"input_ids", ids}}, 1);
      EXPECT_EQ(announced.at("hidden_states").sizes(), outputs.hidden_states.sizes());
      EXPECT_EQ(announced.at("hidden_states").scalar_type(), at::kDouble);
      inputs.input_ids = at::Tensor();
      inputs.hidden_states = outputs.hidden_states;
    }
    EXPECT_EQ(parameters, nn::count_parameters(*whole));
    EXPECT_TRUE(at::equal(outputs.logps, wanted)) << stages;
  }
}

TEST(HeterogeneousStages, WithNothingToDoAreRefused) {
  const auto args = args_of("qwen3", {{4, 32}, {0, 0}, {2, 8}});
  EXPECT_THAT(
      any_error::error_of([&] {
        args->build({.stage = {1, 3}});
      }),
      HasSubstr("pipeline stage 1 of 3: is empty: all sub-blocks of its layers 1 to 1"));
  // With the embeddings or the norm there is something to do.
  EXPECT_NO_THROW(args_of("qwen3", {{0, 0}, {4, 32}, {0, 0}})->build({.stage = {2, 3}}));
}

TEST_P(Heterogeneous, WritesAConfigThatReadsBackTheSame) {
  const Node written = args->to_hf_config("float32");
  const auto again = family_of(GetParam().model_type).from_hf_config(parse_json(to_json(written), "config.json"));
  EXPECT_EQ(again->block_configs(), args->block_configs());
  EXPECT_EQ(to_json(again->to_hf_config("float32")), to_json(written));
  // What holds for all layers is as it was given.
  EXPECT_EQ(written.at("intermediate_size").as_int(), 32);
  EXPECT_EQ(written.at("num_key_value_heads").as_int(), kv_heads_of(GetParam().model_type));
}

TEST(HeterogeneousConfig, IsAnOrdinaryOneIfAllLayersAreAlike) {
  const auto args = args_of("qwen3", {{4, 32}, {4, 32}});
  EXPECT_FALSE(args->is_heterogeneous());
  EXPECT_EQ(args->to_hf_config("float32").find("block_configs"), nullptr);
  EXPECT_EQ(args->block_configs(), args_of("qwen3", {{4, 32}, {4, 32}})->block_configs());
  EXPECT_EQ(args->block_configs().size(), 2U);
}

// Its sizes stand in the blocks only, and Llama's family reads it.
TEST(HeterogeneousConfig, OfNemotronNASIsALlama) {
  const char* text = R"({"model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "vocab_size": 29,
    "hidden_size": 192, "intermediate_size": null, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": null, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "block_configs": [
      {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.0}},
      {"attention": {"no_op": true, "n_heads_in_group": null}, "ffn": {"ffn_mult": 4.0}}]})";
  const auto args = llama3_family().from_hf_config(parse_json(text, "config.json"));
  args->check("config.json: ");
  const Node config = args->to_hf_config("bfloat16");
  EXPECT_EQ(config.at("model_type").as_string(), "llama");
  EXPECT_EQ(config.at("intermediate_size").as_int(), 512);
  EXPECT_EQ(config.at("num_key_value_heads").as_int(), 2);
  EXPECT_EQ(args->block_configs()[1].ffn, (decltype(descriptor::BlockConfig::ffn){descriptor::FFNSubblock{512}}));
  EXPECT_THAT(llama3_family().hf_model_types, ElementsAre("llama", "nemotron-nas"));
}

// The message of the error that the work ends with.
template <class Work>
std::string problem(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(HeterogeneousConfig, IsRefusedWhereItDoesNotFit) {
  EXPECT_THAT(
      problem([] { args_of("qwen3", kMixtures); }),
      HasSubstr("config.json: block_configs[0].ffn.moe: this family has no experts"));
  const auto args = args_of("qwen3", kMixed);
  auto blocks = args->block_configs();
  blocks[1].attention = descriptor::AttentionSubblock{3};
  args->set_block_configs(blocks);
  EXPECT_THAT(
      problem([&] { args->check("plan: "); }),
      HasSubstr("plan: block_configs[1].attention.num_key_value_heads: expected a divisor of num_attention_heads (8)"));
  std::string fewer = config_json("qwen3", kMixed);
  const std::string count = "\"num_hidden_layers\": 6";
  fewer.replace(fewer.find(count), count.size(), "\"num_hidden_layers\": 7");
  EXPECT_THAT(
      problem([&] { qwen3_dense_family().from_hf_config(parse_json(fewer, "config.json"))->check("config.json: "); }),
      HasSubstr("config.json: block_configs: expected one per layer (7, num_hidden_layers), found 6"));
  descriptor::ModelOverrides overrides;
  overrides.intermediate_size = 64;
  EXPECT_THAT(
      problem([&] { args->apply(overrides); }),
      HasSubstr("model.args.intermediate_size: block_configs in the model's"));
  std::string shared = config_json("qwen3_moe", kMixtures);
  const std::string width = "\"expert_intermediate_dim\": 8";
  for (const auto& [dim, refused] : {std::pair{8192, false}, {16, true}}) {
    std::string text = shared;
    text.replace(text.find(width), width.size(), width + fmt::format(", \"shared_expert_intermediate_dim\": {}", dim));
    const std::string found =
        problem([&] { qwen3_moe_family().from_hf_config(parse_json(text, "config.json"))->check("config.json: "); });
    EXPECT_THAT(
        found, refused ? HasSubstr("block_configs[0].ffn.moe.shared_expert_intermediate_dim") : HasSubstr("accepted"));
  }
  EXPECT_THAT(
      problem([] {
        args_of("deepseek_v3", {{4, 32}});
      }),
      HasSubstr("block_configs[0].attention.num_key_value_heads: the layer has latent attention, without KV heads that "
                "could be fewer; expected 1, found 4"));
  EXPECT_THAT(
      problem([] {
        args_of("deepseek_v3", {{1, 32}, {1, 32, 0, 0, 0, 4}});
      }),
      HasSubstr("block_configs[1].attention.window_length: the layer has latent attention, which has no windows"));
  EXPECT_THAT(
      problem([] {
        args_of("qwen3_next", {{1, 32}, {2, 32, 0, 0, 0, 4}});
      }),
      HasSubstr("block_configs[1].attention.window_length: the attention of models of type qwen3_next has no windows"));
  EXPECT_THAT(
      problem([] {
        args_of("qwen3_next", {{1, 32}, {2, 32}, {2, 32}});
      }),
      HasSubstr("block_configs[2].attention.num_key_value_heads: the layer has gated DeltaNet"));
  EXPECT_THAT(
      problem([] {
        args_of("deepseek_v3", {{kLinear, 32}});
      }),
      HasSubstr("models of type deepseek_v3 do not support replace_with_linear"));
  EXPECT_THAT(
      problem([] { args_of("glm4_moe", kMixtures); }),
      HasSubstr("block_configs[0].ffn.moe.shared_expert_intermediate_dim: expected a positive number, found 0"));
  EXPECT_EQ(
      std::get<descriptor::MoESubblock>(args_of("glm4_moe", {{4, 8, 6, 2, 8192}})->block_configs()[0].ffn)
          .shared_expert_intermediate_dim,
      8192)
      << "puzzletron's value is a width in families with shared experts";
}

}  // namespace
}  // namespace lehr::model::test
