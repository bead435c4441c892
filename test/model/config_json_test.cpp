// Defaults of keys that a config.json lacks, and values that are refused.
#include <gmock/gmock.h>

#include <tuple>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/block_table.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/smollm3/family.h"
#include "test/model/changed_config.h"

namespace lehr::model {
namespace {

using test::Changes;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The debug model of a family from its config.json with some keys replaced.
std::unique_ptr<descriptor::ModelArgs> with(const descriptor::ModelFamily& family, const Changes& changes) {
  return test::changed(family, family.flavors.at("debugmodel")()->to_hf_config("float32"), changes);
}

// The message of the usage error; empty without one.
std::string problem_with(const descriptor::ModelFamily& family, const Changes& changes) {
  try {
    with(family, changes);
    return "";
  } catch (const Error& error) {
    return error.kind() == ErrorKind::usage ? error.what() : "another kind of error";
  }
}

// For a missing key, transformers' class has a default of its own; with another one here, it would be another model.
TEST(ConfigJson, NamesTheKeyThatAConfigLacks) {
  for (const char* key : {"head_dim", "hidden_size", "vocab_size"}) {
    EXPECT_EQ(problem_with(qwen3_dense_family(), {{key, "absent"}}), fmt::format("config.json: '{}' is missing", key));
    EXPECT_THAT(
        problem_with(qwen3_dense_family(), {{key, "null"}}), StartsWith(fmt::format("config.json: {}: expected", key)));
  }
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size"}) {
    EXPECT_EQ(problem_with(qwen3_moe_family(), {{key, "absent"}}), fmt::format("config.json: '{}' is missing", key));
    EXPECT_THAT(
        problem_with(qwen3_moe_family(), {{key, "null"}}), StartsWith(fmt::format("config.json: {}: expected", key)));
  }
}

// In transformers' classes it means those of queries, keys and values, and of the output.
TEST(ConfigJson, AttentionBiasGivesEachProjectionABias) {
  for (const auto& family :
       {llama3_family(),
        qwen3_dense_family(),
        qwen3_moe_family(),
        olmo2_family(),
        olmo3_family(),
        smollm3_family(),
        gemma3_family()}) {
    const auto args = with(family, {{"attention_bias", "true"}});
    const auto names = args->state_map(descriptor::ExpertLayout::per_expert).input_names();
    for (const char* projection : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      const std::string bias = fmt::format("model.layers.1.self_attn.{}.bias", projection);
      EXPECT_THAT(names, ::testing::Contains(bias)) << family.name;
    }
    EXPECT_TRUE(args->to_hf_config("float32").at("attention_bias").as_bool()) << family.name;
    EXPECT_EQ(
        descriptor::blocks_of(*args, {}).account.total().num_parameters, args->get_nparams_and_flops(8).num_parameters)
        << family.name;
  }
}

// As the configuration classes of transformers 5.23.
TEST(ConfigJson, GivesAbsentKeysTheValuesOfTransformers) {
  const auto written = [](const descriptor::ModelFamily& family, const Changes& changes) {
    return with(family, changes)->to_hf_config("float32");
  };
  const Node llama = written(
      llama3_family(),
      {{"num_key_value_heads", "absent"},
       {"head_dim", "null"},
       {"bos_token_id", "absent"},
       {"eos_token_id", "absent"},
       {"rope_theta", "absent"},
       {"rope_scaling", "absent"},
       {"rms_norm_eps", "absent"},
       {"tie_word_embeddings", "absent"}});
  EXPECT_EQ(llama.at("num_key_value_heads").as_int(), 16);
  EXPECT_EQ(llama.at("head_dim").as_int(), 16);
  EXPECT_EQ(llama.at("bos_token_id").as_int(), 1);
  EXPECT_EQ(llama.at("eos_token_id").as_int(), 2);
  EXPECT_EQ(llama.at("rope_theta").as_double(), 10000);
  EXPECT_EQ(llama.at("rms_norm_eps").as_double(), 1e-6);
  EXPECT_FALSE(llama.at("tie_word_embeddings").as_bool());
  EXPECT_EQ(written(olmo2_family(), {{"rms_norm_eps", "absent"}}).at("rms_norm_eps").as_double(), 1e-5);
  EXPECT_EQ(written(olmo3_family(), {{"rms_norm_eps", "absent"}}).at("rms_norm_eps").as_double(), 1e-5);
  // null says that there are none; Qwen3's class has none without the keys either.
  EXPECT_TRUE(written(llama3_family(), {{"eos_token_id", "null"}}).at("eos_token_id").is_null());
  EXPECT_TRUE(written(qwen3_dense_family(), {{"eos_token_id", "absent"}}).at("eos_token_id").is_null());
  const Node moe =
      written(qwen3_moe_family(), {{"norm_topk_prob", "absent"}, {"head_dim", "absent"}, {"mlp_only_layers", "null"}});
  EXPECT_FALSE(moe.at("norm_topk_prob").as_bool());
  EXPECT_EQ(moe.at("head_dim").as_int(), 16);
  // Of both names of the RoPE table, the older one counts; one without a theta has the config's.
  const Node both = written(
      qwen3_dense_family(),
      {{"rope_scaling", R"({"rope_type": "linear", "factor": 2})"},
       {"rope_parameters", R"({"rope_type": "default", "rope_theta": 5})"},
       {"rope_theta", "7"}});
  EXPECT_EQ(both.at("rope_scaling").at("rope_type").as_string(), "linear");
  EXPECT_EQ(both.at("rope_theta").as_double(), 7);
}

// The same of the classes whose layers differ.
TEST(ConfigJson, GivesAbsentWindowsAndPositionsTheValuesOfTransformers) {
  const auto written = [](const descriptor::ModelFamily& family, const Changes& changes) {
    return with(family, changes)->to_hf_config("float32");
  };
  const auto sliding = [](const Node& config) {
    std::string kinds;
    for (const Node& type : config.at("layer_types").items()) {
      kinds += type.as_string().front();
    }
    return kinds;
  };
  const Changes bare{
      {"layer_types", "absent"},
      {"sliding_window", "absent"},
      {"rope_theta", "absent"},
      {"rope_scaling", "absent"},
      {"rope_parameters", "absent"},
      {"rope_local_base_freq", "absent"},
      {"tie_word_embeddings", "absent"},
      {"pad_token_id", "absent"},
      {"bos_token_id", "absent"},
      {"eos_token_id", "absent"},
      {"no_rope_layers", "absent"},
      {"max_window_layers", "absent"},
      {"query_pre_attn_scalar", "absent"},
      {"hidden_activation", "absent"}};
  const Node gemma = written(gemma3_family(), bare);
  EXPECT_EQ(sliding(gemma), "sssssfss");
  EXPECT_EQ(gemma.at("sliding_window").as_int(), 4096);
  EXPECT_EQ(gemma.at("rope_parameters").at("full_attention").at("rope_theta").as_double(), 1e6);
  EXPECT_EQ(gemma.at("rope_parameters").at("sliding_attention").at("rope_theta").as_double(), 1e4);
  EXPECT_EQ(gemma.at("query_pre_attn_scalar").as_int(), 256);
  EXPECT_TRUE(gemma.at("tie_word_embeddings").as_bool());
  EXPECT_EQ(gemma.at("pad_token_id").as_int(), 0);
  EXPECT_EQ(gemma.at("bos_token_id").as_int(), 2);
  EXPECT_EQ(gemma.at("eos_token_id").as_int(), 1);
  Changes patterned = bare;
  patterned.emplace_back("sliding_window_pattern", "3");
  EXPECT_EQ(sliding(written(gemma3_family(), patterned)), "ssfssfss");

  const Node olmo = written(olmo3_family(), bare);
  EXPECT_EQ(sliding(olmo), "sssfsssf");
  EXPECT_EQ(olmo.at("sliding_window").as_int(), 4096);
  EXPECT_EQ(olmo.at("rope_theta").as_double(), 500000);
  EXPECT_EQ(olmo.at("eos_token_id").as_int(), 50279);
  for (const auto& family : {olmo2_family(), olmo3_family()}) {
    EXPECT_EQ(written(family, bare).at("pad_token_id").as_int(), 1);
    Changes unpadded = bare;
    unpadded.emplace_back("pad_token_id", "null");
    EXPECT_TRUE(written(family, unpadded).at("pad_token_id").is_null()) << "absent, it would be 1";
  }
  Changes local = bare;
  local.emplace_back("rope_local_base_freq", "7");
  EXPECT_EQ(to_json(written(olmo3_family(), local)), to_json(olmo)) << "a key of Gemma 3";
  // Scaling is that of full layers.
  Changes scaled = bare;
  scaled.emplace_back("rope_scaling", R"({"rope_type": "linear", "factor": 2})");
  const Node tables = written(olmo3_family(), scaled).at("rope_parameters");
  EXPECT_EQ(tables.at("full_attention").at("rope_type").as_string(), "linear");
  EXPECT_EQ(tables.at("sliding_attention").at("rope_type").as_string(), "default");

  const Node smol = written(smollm3_family(), bare);
  EXPECT_EQ(to_json(smol.at("no_rope_layers")), to_json(parse_json("[1,1,1,0,1,1,1,0]", "list")));
  EXPECT_EQ(smol.at("rope_theta").as_double(), 2e6);
  EXPECT_TRUE(smol.at("tie_word_embeddings").as_bool());
  EXPECT_EQ(smol.at("pad_token_id").as_int(), 128004);
  EXPECT_EQ(sliding(smol), "ffffffff") << "use_sliding_window without sliding_window";
  Changes windowed = bare;
  windowed.emplace_back("sliding_window", "7");
  EXPECT_EQ(sliding(written(smollm3_family(), windowed)), "fffsfffs") << "the layers without positions";

  EXPECT_EQ(written(mistral_family(), bare).at("sliding_window").as_int(), 4096);
  EXPECT_TRUE(written(mistral_family(), {{"sliding_window", "null"}}).at("sliding_window").is_null());
  const Node qwen = written(qwen2_family(), bare);
  EXPECT_EQ(qwen.at("sliding_window").as_int(), 4096);
  EXPECT_EQ(sliding(qwen), "ffffffff") << "28 layers without the window";
  windowed = bare;
  windowed.emplace_back("max_window_layers", "6");
  EXPECT_EQ(sliding(written(qwen2_family(), windowed)), "ffffffss");
  EXPECT_EQ(sliding(written(qwen3_dense_family(), windowed)), "ffffffff") << "without use_sliding_window";
  windowed.emplace_back("use_sliding_window", "true");
  EXPECT_EQ(sliding(written(qwen3_dense_family(), windowed)), "ffffffss");
  EXPECT_EQ(written(qwen3_dense_family(), windowed).at("sliding_window").as_int(), 4096);
  EXPECT_EQ(written(qwen3_moe_family(), windowed).at("sliding_window").as_int(), 4096) << "in all layers";
  EXPECT_TRUE(written(qwen3_moe_family(), {{"sliding_window", "5"}}).at("sliding_window").is_null());
}

// Keys of published files that change nothing, and keys that do and are not implemented.
TEST(ConfigJson, AcceptsKeysWithoutEffectAndNamesTheOthers) {
  for (const auto& [family, key, value] : std::vector<std::tuple<descriptor::ModelFamily, std::string, std::string>>{
           {mistral_family(), "layer_types", R"(["sliding_attention"])"},
           {mistral_family(), "attention_bias", "true"},
           {qwen2_family(), "use_mrope", "false"},
           {qwen2_family(), "attention_bias", "true"},
           {smollm3_family(), "pretraining_tp", "2"},
           {gemma3_family(), "hidden_act", R"("gelu_pytorch_tanh")"},
           {gemma3_family(), "cache_implementation", R"("hybrid")"},
           {gemma3_family(), "final_logit_softcapping", "null"}}) {
    EXPECT_EQ(problem_with(family, {{key, value}}), "") << family.name << " " << key;
  }
  const std::string flat = R"({"rope_type": "default", "rope_theta": 5})";
  for (const auto& [family, key, value, message] :
       std::vector<std::tuple<descriptor::ModelFamily, std::string, std::string, std::string>>{
           {llama3_family(), "layer_types", R"(["sliding_attention"])", "full_attention in every layer"},
           {qwen3_moe_family(), "layer_types", R"(["sliding_attention"])", "full_attention in every layer"},
           {qwen3_dense_family(),
            "layer_types",
            R"(["full_attention"])",
            "expected one per layer (8, num_hidden_layers"},
           {smollm3_family(), "mlp_bias", "true", "expected false"},
           {smollm3_family(), "no_rope_layers", "[1]", "expected one per layer (8, num_hidden_layers), found 1"},
           {olmo3_family(), "layer_types", R"(["full_attention"])", "expected one per layer (8, num_hidden_layers)"},
           {olmo3_family(), "sliding_window", "null", "expected a number of tokens"},
           {olmo3_family(), "rope_parameters", flat, "expected a table full_attention and a table sliding_attention"},
           {qwen2_family(), "use_sliding_window", "false", "expected a number of tokens"},
           {gemma3_family(), "hidden_activation", R"("gelu")", "expected gelu_pytorch_tanh"},
           {gemma3_family(), "final_logit_softcapping", "30", "expected null"},
           {gemma3_family(), "use_bidirectional_attention", "true", "expected false"},
           {gemma3_family(), "query_pre_attn_scalar", "0", "expected a positive number"},
           {gemma3_family(), "sliding_window_pattern", "0", "expected a positive number"},
           {gemma3_family(), "sliding_window", "0", "expected a positive number"},
           {gemma3_family(), "attn_logit_softcapping", "50", "expected null"}}) {
    EXPECT_THAT(
        problem_with(family, {{key, value}}), AllOf(StartsWith("config.json: "), HasSubstr(key), HasSubstr(message)))
        << family.name;
  }
  EXPECT_THAT(
      problem_with(smollm3_family(), {{"no_rope_layers", "absent"}, {"no_rope_layer_interval", "0"}}),
      HasSubstr("config.json: no_rope_layer_interval: expected a positive number, found 0"));
  EXPECT_THAT(
      problem_with(olmo3_family(), {{"rope_parameters", "absent"}, {"rope_theta", "10000"}}),
      HasSubstr("config.json: rope_theta: expected 500000, or rope_parameters with a table"));
  const std::string types = R"(["chunked_attention", "full_attention", "full_attention", "full_attention",
      "full_attention", "full_attention", "full_attention", "full_attention"])";
  EXPECT_THAT(
      problem_with(gemma3_family(), {{"layer_types", types}}),
      HasSubstr("config.json: layer_types[0]: expected full_attention or sliding_attention, found chunked_attention"));
}

// Before anything of that size is allocated or multiplied.
TEST(ConfigJson, NamesTheKeyThatIsTooLarge) {
  for (const char* key :
       {"vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings"}) {
    for (const char* value : {"4294967296", "9223372036854775807", "0", "-5"}) {
      EXPECT_THAT(
          problem_with(qwen3_dense_family(), {{key, value}}),
          AllOf(StartsWith(fmt::format("config.json: {}: expected ", key)), EndsWith(fmt::format("found {}", value))));
    }
    for (const char* value : {"1.5", "\"16\"", "18446744073709551616", "[]", "true"}) {
      EXPECT_THAT(
          problem_with(qwen3_dense_family(), {{key, value}}),
          StartsWith(fmt::format("config.json: {}: expected an integer, found ", key)));
    }
  }
  for (const char* key : {"num_experts", "moe_intermediate_size", "decoder_sparse_step"}) {
    EXPECT_THAT(
        problem_with(qwen3_moe_family(), {{key, "4294967296"}}),
        StartsWith(fmt::format("config.json: {}: expected at most ", key)));
  }
  // Each is allowed, but not all of them.
  EXPECT_THAT(
      problem_with(qwen3_dense_family(), {{"vocab_size", "2000000000"}, {"hidden_size", "2000000000"}}),
      HasSubstr("vocab_size, hidden_size, intermediate_size, num_hidden_layers: expected at most 1125899906842624"));
  EXPECT_THAT(
      problem_with(qwen3_dense_family(), {{"head_dim", "2000000000"}}),
      HasSubstr("head_dim, num_attention_heads, num_hidden_layers: expected a product of at most"));
  EXPECT_THAT(
      problem_with(qwen3_moe_family(), {{"num_experts", "100000"}}),
      HasSubstr("num_experts, num_hidden_layers: expected at most 131072 experts"));
  EXPECT_THAT(
      problem_with(
          llama3_family(),
          {{"num_hidden_layers", "1"},
           {"block_configs", R"([{"attention": {"no_op": true}, "ffn": {"intermediate_size": 4294967296}}])"}}),
      HasSubstr("config.json: block_configs[0].ffn.intermediate_size: expected at most"));
}

TEST(ConfigJson, NamesTheFileAndTheKeyThatDoNotFit) {
  const auto dense = qwen3_dense_family();
  const std::vector<std::tuple<descriptor::ModelFamily, std::string, std::string, std::string>> cases{
      {dense, "rope_scaling", R"({"rope_type": "linear", "factor": 0})", "rope_scaling: factor: expected a positive"},
      {dense, "rope_scaling", R"({"full_attention": {}})", "rope_scaling.full_attention: expected one table"},
      {dense, "initializer_range", "-1", "initializer_range: expected 0 or a positive number"},
      {dense, "classifier_dropout", "2", "classifier_dropout: expected a number from 0 to below 1"},
      {dense, "id2label", "[]", "id2label: expected a table"},
      {dense, "architectures", "\"X\"", "architectures: expected a list"},
      {dense, "num_experts_per_tok", "2", "'num_experts' is missing"},
      {qwen3_moe_family(), "num_local_experts", "3", "num_local_experts: defines the same as num_experts (64)"},
      {qwen3_moe_family(), "router_aux_loss_coef", "-1", "router_aux_loss_coef: expected 0 or a positive number"}};
  for (const auto& [family, key, value, message] : cases) {
    EXPECT_THAT(problem_with(family, {{key, value}}), StartsWith("config.json: " + message));
  }
  EXPECT_EQ(
      problem_with(llama3_family(), {{"head_dim", "absent"}, {"num_attention_heads", "48"}}),
      "config.json: num_attention_heads: expected a divisor of hidden_size (256), because there is no head_dim, found "
      "48");
  EXPECT_THAT(
      problem_with(dense, {{"num_experts_per_tok", "2"}, {"num_experts", "4"}, {"moe_intermediate_size", "8"}}),
      StartsWith("config.json: num_experts_per_tok: models of type qwen3 have no experts"));
}

TEST(ConfigJson, SaysWhichLabelsAClassifierGives) {
  const std::string tokens = R"(["Qwen3ForTokenClassification"])";
  const auto round_trip = [](const Changes& changes) {
    return with(qwen3_dense_family(), changes)->to_hf_config("float32");
  };
  const auto parameters = [](const Changes& changes) {
    return with(qwen3_dense_family(), changes)->state_map(descriptor::ExpertLayout::per_expert).input_names();
  };
  const Changes plain{{"architectures", tokens}, {"id2label", R"({"0": "O", "1": "B", "2": "I"})"}};
  EXPECT_EQ(with(qwen3_dense_family(), plain)->head(), descriptor::Head::token_classification);
  Node config = round_trip(plain);
  EXPECT_EQ(config.at("architectures").at(0).as_string(), "Qwen3ForTokenClassification");
  EXPECT_EQ(config.at("id2label").entries().size(), 3U);
  EXPECT_EQ(config.at("classifier_dropout").as_double(), 0.1) << "of transformers, where the key is absent";
  EXPECT_EQ(config.find("token_classification_bias"), nullptr);
  EXPECT_THAT(parameters(plain), ::testing::IsSupersetOf({"score.weight", "score.bias"}));

  Changes without_bias = plain;
  without_bias.emplace_back("token_classification_bias", "false");
  EXPECT_FALSE(round_trip(without_bias).at("token_classification_bias").as_bool());
  EXPECT_THAT(parameters(without_bias), ::testing::Not(::testing::Contains("score.bias")));

  config = round_trip({{"architectures", R"(["Qwen3ForSequenceClassification"])"}});
  EXPECT_EQ(config.at("architectures").at(0).as_string(), "Qwen3ForSequenceClassification");
  EXPECT_EQ(config.at("classifier_dropout").as_double(), 0);
  EXPECT_THAT(
      parameters({{"architectures", R"(["Qwen3ForSequenceClassification"])"}}),
      ::testing::Not(::testing::Contains("score.bias")));
  EXPECT_THAT(
      problem_with(qwen3_dense_family(), {{"architectures", R"(["Qwen3ForQuestionAnswering"])"}}),
      HasSubstr("architectures: expected ...ForCausalLM, ...ForSequenceClassification, ...ForTokenClassification or"));
}

}  // namespace
}  // namespace lehr::model
