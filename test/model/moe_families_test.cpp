// config.json of the families with experts: what absent keys are, what is refused, and what every family writes.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "lehr/config/json.h"
#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/glm4_moe/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/minimax_m2/family.h"
#include "lehr/model/mixtral/family.h"
#include "lehr/model/smollm3/family.h"
#include "lehr/nn/moe.h"
#include "test/base/error_of.h"
#include "test/model/changed_config.h"

namespace lehr::model {
namespace {

using test::Changes;
using ::testing::HasSubstr;

// The debug model of a family from its config.json with some keys replaced.
std::unique_ptr<descriptor::ModelArgs> with(const descriptor::ModelFamily& family, const Changes& changes) {
  return test::changed(family, family.flavors.at("debugmodel")()->to_hf_config("float32"), changes);
}

Node written(const descriptor::ModelFamily& family, const Changes& changes) {
  return with(family, changes)->to_hf_config("float32");
}

std::string problem(const descriptor::ModelFamily& family, const Changes& changes) {
  return test::problem_of_changed(family, family.flavors.at("debugmodel")()->to_hf_config("float32"), changes);
}

// As the configuration classes of transformers 5.23.
TEST(ConfigJsonOfExperts, GivesAbsentKeysTheValuesOfTransformers) {
  const Node mixtral = written(
      mixtral_family(),
      {{"sliding_window", "absent"},
       {"rms_norm_eps", "absent"},
       {"rope_theta", "absent"},
       {"bos_token_id", "absent"},
       {"eos_token_id", "absent"}});
  EXPECT_TRUE(mixtral.at("sliding_window").is_null());
  EXPECT_EQ(mixtral.at("rms_norm_eps").as_double(), 1e-5);
  EXPECT_EQ(mixtral.at("rope_theta").as_double(), 1e6);
  EXPECT_EQ(mixtral.at("bos_token_id").as_int(), 1);
  EXPECT_EQ(mixtral.at("eos_token_id").as_int(), 2);
  // Keys of other families, which its class does not read.
  EXPECT_EQ(problem(mixtral_family(), {{"norm_topk_prob", "false"}, {"decoder_sparse_step", "2"}}), "accepted");

  const Changes bare{
      {"n_group", "absent"},
      {"topk_group", "absent"},
      {"routed_scaling_factor", "absent"},
      {"first_k_dense_replace", "absent"},
      {"norm_topk_prob", "absent"},
      {"n_shared_experts", "absent"},
      {"q_lora_rank", "absent"},
      {"rope_interleave", "absent"},
      {"attention_bias", "absent"},
      {"partial_rotary_factor", "absent"},
      {"use_qk_norm", "absent"},
      {"rms_norm_eps", "absent"}};
  const Node deepseek = written(deepseek_v3_family(), bare);
  EXPECT_EQ(deepseek.at("n_group").as_int(), 8);
  EXPECT_EQ(deepseek.at("topk_group").as_int(), 4);
  EXPECT_EQ(deepseek.at("routed_scaling_factor").as_double(), 2.5);
  EXPECT_EQ(deepseek.at("first_k_dense_replace").as_int(), 3);
  EXPECT_EQ(deepseek.at("n_shared_experts").as_int(), 1);
  EXPECT_EQ(deepseek.at("q_lora_rank").as_int(), 1536);
  EXPECT_EQ(deepseek.at("rms_norm_eps").as_double(), 1e-6);
  EXPECT_TRUE(deepseek.at("norm_topk_prob").as_bool());
  EXPECT_TRUE(deepseek.at("rope_interleave").as_bool());
  EXPECT_FALSE(deepseek.at("attention_bias").as_bool());
  EXPECT_TRUE(written(deepseek_v3_family(), {{"q_lora_rank", "null"}}).at("q_lora_rank").is_null());

  const Node glm = written(glm4_moe_family(), bare);
  EXPECT_EQ(glm.at("n_group").as_int(), 1);
  EXPECT_EQ(glm.at("topk_group").as_int(), 1);
  EXPECT_EQ(glm.at("routed_scaling_factor").as_double(), 1);
  EXPECT_EQ(glm.at("first_k_dense_replace").as_int(), 1);
  EXPECT_EQ(glm.at("partial_rotary_factor").as_double(), 0.5);
  EXPECT_EQ(glm.at("rms_norm_eps").as_double(), 1e-5);
  EXPECT_FALSE(glm.at("use_qk_norm").as_bool());
  EXPECT_FALSE(glm.at("attention_bias").as_bool());
  const std::string table = R"({"rope_type": "default", "rope_theta": 50, "partial_rotary_factor": 0.25})";
  const Changes in_table{{"partial_rotary_factor", "absent"}, {"rope_parameters", table}, {"rope_scaling", "absent"}};
  EXPECT_EQ(written(glm4_moe_family(), in_table).at("partial_rotary_factor").as_double(), 0.25);
}

TEST(ConfigJsonOfExperts, GivesAbsentKeysOfMiniMaxM2TheValuesOfTransformers) {
  const Changes bare{
      {"rms_norm_eps", "absent"},
      {"rope_theta", "absent"},
      {"bos_token_id", "absent"},
      {"eos_token_id", "absent"},
      {"partial_rotary_factor", "absent"},
      {"rotary_dim", "absent"}};
  const auto family = minimax_m2_family();
  const Node minimax = written(family, bare);
  EXPECT_EQ(minimax.at("rms_norm_eps").as_double(), 1e-6);
  EXPECT_EQ(minimax.at("rope_theta").as_double(), 5e6);
  EXPECT_EQ(minimax.at("bos_token_id").as_int(), 200034);
  EXPECT_EQ(minimax.at("eos_token_id").as_int(), 200020);
  EXPECT_EQ(minimax.at("partial_rotary_factor").as_double(), 1);
  // The published key, which another one overrides.
  const auto rotated = [&](Changes changes) {
    changes.emplace_back("rope_scaling", "absent");
    return written(family, changes).at("rotary_dim").as_int();
  };
  EXPECT_EQ(rotated({{"partial_rotary_factor", "absent"}, {"rotary_dim", "6"}}), 6);
  EXPECT_EQ(rotated({{"partial_rotary_factor", "absent"}, {"rotary_dim", "null"}}), 16);
  EXPECT_EQ(rotated({{"partial_rotary_factor", "0.25"}, {"rotary_dim", "6"}}), 4);
  const std::string table = R"({"rope_type": "default", "rope_theta": 50, "partial_rotary_factor": 0.75})";
  EXPECT_EQ(rotated({{"partial_rotary_factor", "absent"}, {"rope_parameters", table}}), 12);
  // Keys of other families, which its class does not read.
  const Changes unread{{"norm_topk_prob", "false"}, {"n_group", "4"}, {"attention_bias", "true"}, {"mlp_bias", "true"}};
  EXPECT_EQ(problem(family, unread), "accepted");
  EXPECT_EQ(written(family, {}).find("expert_bias"), nullptr);
  EXPECT_EQ(written(family, {}).find("num_experts"), nullptr);
}

TEST(ConfigJsonOfExperts, GivesAbsentKeysOfGptOssTheValuesOfTransformers) {
  const Node bare = written(
      gpt_oss_family(),
      {{"swiglu_limit", "absent"},
       {"swiglu_alpha", "absent"},
       {"sliding_window", "absent"},
       {"layer_types", "absent"},
       {"attention_bias", "absent"},
       {"rms_norm_eps", "absent"},
       {"rope_theta", "absent"},
       {"rope_scaling", "absent"},
       {"rope_parameters", "absent"}});
  EXPECT_EQ(bare.at("swiglu_limit").as_double(), 7);
  EXPECT_EQ(bare.at("swiglu_alpha").as_double(), 1.702);
  EXPECT_EQ(bare.at("sliding_window").as_int(), 128);
  EXPECT_EQ(bare.at("layer_types").at(0).as_string(), "sliding_attention");
  EXPECT_EQ(bare.at("layer_types").at(1).as_string(), "full_attention");
  EXPECT_TRUE(bare.at("attention_bias").as_bool());
  EXPECT_EQ(bare.at("rms_norm_eps").as_double(), 1e-5);
  EXPECT_EQ(bare.at("rope_theta").as_double(), 150000);
  EXPECT_EQ(bare.at("rope_scaling").at("rope_type").as_string(), "yarn");
  EXPECT_EQ(bare.at("rope_scaling").at("factor").as_double(), 32);
  EXPECT_EQ(bare.at("rope_scaling").at("original_max_position_embeddings").as_int(), 4096);
  EXPECT_FALSE(bare.at("rope_scaling").at("truncate").as_bool());
  // What is said explicitly holds: an ordinary rotation is written so that absence does not mean YaRN.
  const Node plain = written(gpt_oss_family(), {});
  EXPECT_TRUE(plain.at("rope_scaling").is_null());
  EXPECT_EQ(plain.at("rope_parameters").at("rope_type").as_string(), "default");
  EXPECT_EQ(plain.at("rope_parameters").at("rope_theta").as_double(), 150000);
  EXPECT_EQ(to_json(written(gpt_oss_family(), {{"rope_scaling", "absent"}})), to_json(plain));
  EXPECT_FALSE(written(gpt_oss_family(), {{"attention_bias", "false"}}).at("attention_bias").as_bool());
}

TEST(ConfigJson, OfQuantizedWeightsIsReadIfTheFilesAre) {
  const auto family = gpt_oss_family();
  const auto with_key = [&](const std::string& json) { return problem(family, {{"quantization_config", json}}); };
  for (const char* accepted :
       {"null",
        R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})",
        R"({"quant_method": "fp8"})",
        R"({"quant_method": "fp8", "fmt": "float8_e4m3fn", "weight_block_size": [128, 128]})",
        R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})"}) {
    EXPECT_EQ(with_key(accepted), "accepted");
  }
  EXPECT_EQ(
      with_key(R"({"quant_method": "gptq", "bits": 4})"),
      "config.json: quantization_config.quant_method: expected mxfp4 or fp8, found gptq; load the model with "
      "transformers, dequantize it and save it in bfloat16");
  EXPECT_THAT(with_key("{}"), HasSubstr("quantization_config.quant_method: expected mxfp4 or fp8, found none"));
  EXPECT_THAT(with_key("3"), HasSubstr("quantization_config: expected a table, found another value"));
  EXPECT_THAT(
      with_key(R"({"quant_method": 8})"), HasSubstr("quant_method: expected mxfp4 or fp8, found another value"));
  EXPECT_THAT(with_key(R"({"quant_method": "fp8", "fmt": "e5m2"})"), HasSubstr("fmt: expected e4m3, found e5m2"));
  for (const char* size : {"[64, 128]", "[128]", "null", "128", "[128, 128, 1]", "[128.5, 128]"}) {
    EXPECT_THAT(
        with_key(fmt::format(R"({{"quant_method": "fp8", "weight_block_size": {}}})", size)),
        HasSubstr("quantization_config.weight_block_size: expected [128, 128], found another value"));
  }
}

TEST(ConfigJsonOfExperts, RefusesWhatIsNotComputed) {
  const auto mixtral = mixtral_family(), deepseek = deepseek_v3_family(), glm = glm4_moe_family();
  const auto gpt_oss = gpt_oss_family(), minimax = minimax_m2_family();
  const std::vector<std::tuple<descriptor::ModelFamily, std::string, std::string, std::string>> cases{
      {mixtral, "router_jitter_noise", "0.1", "router_jitter_noise: expected 0"},
      {mixtral, "num_local_experts", "absent", "'num_experts' is missing"},
      {minimax, "router_jitter_noise", "0.1", "router_jitter_noise: expected 0"},
      {minimax, "num_local_experts", "absent", "'num_experts' is missing"},
      {minimax, "head_dim", "absent", "'head_dim' is missing"},
      {minimax, "scoring_func", "\"softmax\"", "scoring_func: expected sigmoid, found softmax"},
      {minimax, "use_routing_bias", "false", "use_routing_bias: expected true, found false"},
      {minimax, "use_qk_norm", "false", "use_qk_norm: expected true, found false"},
      {minimax, "qk_norm_type", "\"per_head\"", "qk_norm_type: expected per_layer, found per_head"},
      {minimax, "shared_intermediate_size", "512", "shared_intermediate_size: expected 0, found 512"},
      {minimax, "attn_type_list", "[1, 0]", "attn_type_list: expected 1 (softmax attention) in every layer, found 0"},
      {minimax, "partial_rotary_factor", "0.1", "partial_rotary_factor: expected a part of head_dim (16)"},
      {minimax, "partial_rotary_factor", "1.5", "partial_rotary_factor: expected a part of head_dim (16)"},
      {deepseek, "scoring_func", "\"softmax\"", "scoring_func: expected sigmoid"},
      {deepseek, "topk_method", "\"greedy\"", "topk_method: expected noaux_tc"},
      {deepseek, "moe_layer_freq", "2", "moe_layer_freq: expected 1"},
      {deepseek, "quantization_config", R"({"quant_method": "awq"})", "quant_method: expected mxfp4 or fp8, found awq"},
      {gpt_oss, "swiglu_limit", "0", "swiglu_limit: expected a positive number, found 0"},
      {gpt_oss, "sliding_window", "null", "sliding_window: expected a number of tokens"},
      {gpt_oss, "num_local_experts", "absent", "'num_experts' is missing"},
      {gpt_oss, "num_experts_per_tok", "absent", "'num_experts_per_tok' is missing"},
      {gpt_oss, "head_dim", "null", "head_dim: expected a value, found null"},
      {gpt_oss, "layer_types", "[\"full_attention\"]", "layer_types: expected one per layer (6"},
      {gpt_oss, "hidden_act", "\"gelu\"", "hidden_act: expected silu"},
      {deepseek, "first_k_dense_replace", "7", "first_k_dense_replace: expected 0 to num_hidden_layers (6), found 7"},
      {deepseek, "num_key_value_heads", "4", "num_key_value_heads: expected num_attention_heads (8)"},
      {deepseek, "n_group", "5", "n_group: expected a divisor of the number of experts (32)"},
      {deepseek, "topk_group", "0", "topk_group: expected 1 to n_group (4), found 0"},
      {deepseek, "n_shared_experts", "0", "n_shared_experts: expected a positive number, found 0"},
      {deepseek, "kv_lora_rank", "0", "kv_lora_rank: expected a positive number, found 0"},
      {deepseek, "kv_lora_rank", "absent", "'kv_lora_rank' is missing"},
      {deepseek, "qk_rope_head_dim", "15", "head_dim: expected an even number"},
      {glm, "partial_rotary_factor", "0.1", "partial_rotary_factor: expected a part of head_dim (16)"},
      {glm, "routed_scaling_factor", "0", "routed_scaling_factor: expected a positive number, found 0"},
      {glm, "attention_dropout", "0.1", "attention_dropout: expected 0"},
      {glm, "is_causal", "false", "is_causal: expected true, found false"}};
  for (const auto& [family, key, value, message] : cases) {
    EXPECT_THAT(problem(family, {{key, value}}), HasSubstr(message)) << family.name;
  }
  const std::string width = "moe_intermediate_size";
  for (const auto& family : {mixtral, gpt_oss, minimax}) {
    const std::string usual = std::to_string(written(family, {}).at("intermediate_size").as_int());
    EXPECT_THAT(
        problem(family, {{width, "64"}}),
        HasSubstr(
            width +
            ": transformers' class of this model type does not read it, and its experts have "
            "intermediate_size; expected that (" +
            usual + "), found 64"))
        << family.name;
    EXPECT_EQ(problem(family, {{width, usual}}), "accepted") << family.name;
  }
  const std::string block = R"([{"attention": {"no_op": true}, "ffn": {"intermediate_size": 8}}])";
  EXPECT_THAT(
      problem(gpt_oss, {{"num_hidden_layers", "1"}, {"layer_types", "absent"}, {"block_configs", block}}),
      HasSubstr("block_configs[0].ffn: models of type gpt_oss have experts in every layer; expected moe, or no_op"));
}

// model.args of a run reach the layers, and what a config.json of the family cannot say is refused.
TEST(ConfigJsonOfExperts, TakesOrRefusesOverrides) {
  const auto problem_of = [](const descriptor::ModelFamily& family, const descriptor::ModelOverrides& overrides) {
    const auto args = family.from_flavor("debugmodel");
    args->apply(overrides);
    return any_error::error_of([&] { args->check(""); });
  };
  descriptor::ModelOverrides sparse, unbiased, last, width;
  sparse.decoder_sparse_step = 2;
  unbiased.expert_bias = false;
  last.mlp_only_layers = {5};
  width.intermediate_size = 48;
  for (const auto& family :
       {mixtral_family(), deepseek_v3_family(), glm4_moe_family(), gpt_oss_family(), minimax_m2_family()}) {
    EXPECT_THAT(problem_of(family, sparse), HasSubstr("decoder_sparse_step: ")) << family.name;
    EXPECT_THAT(problem_of(family, last), HasSubstr("mlp_only_layers: ")) << family.name;
  }
  for (const auto& family : {deepseek_v3_family(), glm4_moe_family(), minimax_m2_family()}) {
    EXPECT_THAT(problem_of(family, unbiased), HasSubstr("expert_bias: expected true")) << family.name;
  }
  const auto args = mixtral_family().from_flavor("debugmodel");
  args->apply(width);
  EXPECT_EQ(args->to_hf_config("float32").at("intermediate_size").as_int(), 48) << "the width of experts";
  const auto model = args->build({});
  EXPECT_EQ(nn::moe_layers(*model).front()->grouped_experts->gate_proj->weight.size(1), 48);
}

// The files of DeepSeek-V3, GLM-4.5-Air and gpt-oss-20b as they were published.
constexpr const char* kDeepseekV3 =
    R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "bos_token_id": 0,
  "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
  "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
  "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
  "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
  "weight_block_size": [128, 128]},
  "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
  "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
  "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
  "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true,
  "v_head_dim": 128, "vocab_size": 129280})";
constexpr const char* kGlm45Air =
    R"({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
  "pad_token_id": 151329, "eos_token_id": [151329, 151336, 151338], "hidden_act": "silu", "head_dim": 128,
  "hidden_size": 4096, "partial_rotary_factor": 0.5, "initializer_range": 0.02, "intermediate_size": 10944,
  "max_position_embeddings": 131072, "model_type": "glm4_moe", "moe_intermediate_size": 1408,
  "norm_topk_prob": true, "num_attention_heads": 96, "n_group": 1, "topk_group": 1, "n_routed_experts": 128,
  "n_shared_experts": 1, "routed_scaling_factor": 1.0, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
  "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "rope_theta": 1000000, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.54.0", "use_cache": true, "use_qk_norm": false, "vocab_size": 151552})";

// Those of MiniMax M2's keys that say something about the model.
constexpr const char* kMiniMaxM2 =
    R"({"architectures": ["MiniMaxM2ForCausalLM"], "attn_type_list": [1, 1], "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 3072, "intermediate_size": 1536, "max_position_embeddings": 196608, "model_type": "minimax_m2",
  "mtp_transformer_layers": 1, "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 62,
  "num_key_value_heads": 8, "num_local_experts": 256, "num_mtp_modules": 3, "qk_norm_type": "per_layer",
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "float8_e4m3fn", "quant_method": "fp8",
  "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
  "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid",
  "shared_intermediate_size": 0, "tie_word_embeddings": false, "use_mtp": true, "use_qk_norm": true,
  "use_routing_bias": true, "vocab_size": 200064})";

// {} is the number of layers, {} their types and {} the number of experts, which are other in gpt-oss-120b.
constexpr const char* kGptOss =
    R"({{"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
  "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
  "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
  "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
  "num_experts_per_tok": 4, "num_hidden_layers": {}, "layer_types": [{}], "num_key_value_heads": 8,
  "num_local_experts": {}, "output_router_logits": false, "pad_token_id": 199999, "quantization_config":
  {{"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
  "lm_head"], "quant_method": "mxfp4"}}, "rms_norm_eps": 1e-05, "rope_scaling": {{"beta_fast": 32.0,
  "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
  "truncate": false}}, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
  "swiglu_limit": 7.0, "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true,
  "vocab_size": 201088}})";

// The theta of the table that counts, else the family's own default: transformers ignores rope_parameters beside
// rope_scaling.
TEST(ConfigJsonOfExperts, ReadsThetaWhereItIsSaid) {
  const std::string with_theta = R"({"rope_type": "yarn", "factor": 2, "rope_theta": 500000})";
  const std::string without = R"({"rope_type": "yarn", "factor": 2})";
  for (const auto& [family, usual] :
       {std::pair(mixtral_family(), 1e6), {gpt_oss_family(), 15e4}, {smollm3_family(), 2e6}}) {
    const auto theta = [&family = family](const std::string& scaling, const std::string& parameters) {
      const Changes changes{{"rope_theta", "absent"}, {"rope_scaling", scaling}, {"rope_parameters", parameters}};
      return written(family, changes).at("rope_theta").as_double();
    };
    EXPECT_EQ(theta(with_theta, "absent"), 500000) << family.name;
    EXPECT_EQ(theta("absent", with_theta), 500000) << family.name;
    EXPECT_EQ(theta("null", with_theta), 500000) << family.name;
    EXPECT_EQ(theta(without, "absent"), usual) << family.name;
    EXPECT_EQ(theta(without, with_theta), usual) << family.name;
  }
}

TEST(ConfigJsonOfExperts, ReadsPublishedFiles) {
  const auto same = [](const descriptor::ModelFamily& family, const std::string& published, const char* flavor) {
    const auto args = family.from_hf_config(parse_json(published, "config.json"));
    args->check("config.json: ");
    Node read = args->to_hf_config("bfloat16"), own = family.from_flavor(flavor)->to_hf_config("bfloat16");
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      read.erase(key);
      own.erase(key);
    }
    EXPECT_EQ(to_json(read), to_json(own)) << family.name;
  };
  same(deepseek_v3_family(), kDeepseekV3, "671B");
  same(glm4_moe_family(), kGlm45Air, "Air-106B");
  same(minimax_m2_family(), kMiniMaxM2, "230B-A10B");
  const auto kimi = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/published/kimi_k2_instruct.json";
  same(deepseek_v3_family(), to_json(parse_json_file(kimi)), "Kimi-K2-1T");
  for (const auto& [flavor, layers, experts] : {std::tuple{"20b", 24, 32}, {"120b", 36, 128}}) {
    std::string types;
    for (int layer = 0; layer < layers; ++layer) {
      types += fmt::format("{}\"{}_attention\"", layer > 0 ? ", " : "", layer % 2 == 0 ? "sliding" : "full");
    }
    same(gpt_oss_family(), fmt::format(kGptOss, layers, types, experts), flavor);
  }
}

// The first layers have no experts; the shared expert has the width of all shared experts together.
TEST(LayersOfDeepseekAndGlm, AreThoseOfTheConfig) {
  for (const auto& family : {deepseek_v3_family(), glm4_moe_family()}) {
    const auto args = with(family, {{"first_k_dense_replace", "2"}, {"n_shared_experts", "3"}});
    const auto model = args->build({});
    const auto mixtures = nn::moe_layers(*model);
    ASSERT_EQ(mixtures.size(), 4U) << family.name;
    EXPECT_EQ(mixtures.front()->shared_expert->gate_proj->weight.size(0), 3 * 192);
    const auto names = args->state_map(descriptor::ExpertLayout::per_expert).input_names();
    const auto has = [&](const std::string& name) {
      return std::find(names.begin(), names.end(), "model.layers." + name) != names.end();
    };
    EXPECT_TRUE(has("1.mlp.gate_proj.weight") && !has("1.mlp.gate.weight")) << family.name;
    EXPECT_TRUE(has("2.mlp.gate.weight") && has("2.mlp.gate.e_score_correction_bias")) << family.name;
    EXPECT_TRUE(has("2.mlp.shared_experts.up_proj.weight") && !has("2.mlp.gate_proj.weight")) << family.name;
  }
}

// Per pair of positions, forward and backward: scores of 32 elements and values of 16, in 8 heads of 6 layers. The
// cache has a latent of 64 elements and 16 rotated ones.
TEST(LayersOfDeepseekAndGlm, CountLatentAttention) {
  const auto args = deepseek_v3_family().from_flavor("debugmodel");
  const auto counts = args->get_nparams_and_flops(128);
  EXPECT_EQ(counts.attention_flops_per_pair, 6 * 8 * (32 + 16) * 6);
  EXPECT_EQ(counts.kv_cache_per_token, std::vector<int64_t>(6, 64 + 16));
}

}  // namespace
}  // namespace lehr::model
