// Keys of config.json in [model.args]: each changes the shape, or is refused by name.
#include "lehr/descriptor/config_keys.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "lehr/config/json.h"
#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/glm4_moe/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/minimax_m2/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/mixtral/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_next/family.h"
#include "lehr/model/smollm3/family.h"
#include "test/base/error_of.h"

namespace lehr::model {
namespace {

using ::testing::HasSubstr;

// The config.json of the debug model, or of another flavor, with these keys.
Node changed(const descriptor::ModelFamily& family, const std::string& json, const char* flavor = "debugmodel") {
  return family.with_config_keys(*family.from_flavor(flavor), parse_json(json, "keys"), "model.args")
      ->to_hf_config("float32");
}

// One letter per layer: s for sliding_attention, f for full_attention, l for linear_attention.
std::string types_of(const Node& config) {
  std::string types;
  for (const Node& type : config.at("layer_types").items()) {
    types += type.as_string().front();
  }
  return types;
}

TEST(ConfigKeys, ChangeTheShapeOfAFlavor) {
  const Node latent = changed(deepseek_v3_family(), R"({"kv_lora_rank": 24, "first_k_dense_replace": 2})");
  EXPECT_EQ(latent.at("kv_lora_rank").as_int(), 24);
  EXPECT_EQ(latent.at("first_k_dense_replace").as_int(), 2);
  EXPECT_EQ(changed(gpt_oss_family(), R"({"sliding_window": 5})").at("sliding_window").as_int(), 5);
  EXPECT_EQ(changed(gpt_oss_family(), R"({"swiglu_limit": 3, "eos_token_id": [2]})").at("eos_token_id").as_int(), 2);
  const char* scaling = R"({"rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 500}})";
  EXPECT_EQ(changed(llama3_family(), scaling).at("rope_scaling").at("factor").as_double(), 2);
  EXPECT_EQ(changed(llama3_family(), scaling).at("rope_theta").as_double(), 500);
  EXPECT_TRUE(
      changed(gpt_oss_family(), R"({"rope_scaling": {"rope_type": "default"}})", "20b").at("rope_scaling").is_null());
}

// config.json as it is written has keys that decide before these.
TEST(ConfigKeys, TakeEffectWhereAnotherKeyWouldDecide) {
  const Node rope = changed(gemma3_family(), R"({"rope_local_base_freq": 777})").at("rope_parameters");
  EXPECT_EQ(rope.at("sliding_attention").at("rope_theta").as_double(), 777);
  EXPECT_EQ(rope.at("full_attention").at("rope_theta").as_double(), 1e6);
  EXPECT_EQ(types_of(changed(gemma3_family(), R"({"sliding_window_pattern": 4})")), "sssfsssf");
  EXPECT_EQ(types_of(changed(gemma3_family(), R"({"sliding_window_pattern": 6})")), "sssssfss") << "the default";
  EXPECT_EQ(types_of(changed(qwen3_next_family(), R"({"full_attention_interval": 2})")), "lflflflf");
  const Node rotary = changed(smollm3_family(), R"({"no_rope_layer_interval": 3})").at("no_rope_layers");
  EXPECT_EQ(to_json(rotary), "[1,1,0,1,1,0,1,1]");
  EXPECT_EQ(changed(minimax_m2_family(), R"({"rotary_dim": 4})").at("partial_rotary_factor").as_double(), 0.25);
  EXPECT_EQ(changed(minimax_m2_family(), R"({"partial_rotary_factor": 0.75})").at("rotary_dim").as_int(), 12);
  const Node window =
      changed(qwen2_family(), R"({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 22})", "0.5B");
  EXPECT_EQ(types_of(window), "ffffffffffffffffffffffss");
  EXPECT_EQ(types_of(changed(qwen2_family(), R"({"use_sliding_window": false})")), "ffffffff");
  EXPECT_EQ(types_of(changed(qwen2_family(), R"({"use_sliding_window": true})")), "fsfsfsfs") << "as it was";
  EXPECT_EQ(
      types_of(changed(smollm3_family(), R"({"use_sliding_window": true, "sliding_window": 64})", "3B")).substr(0, 8),
      "fffsfffs");
}

TEST(ConfigKeys, WithoutEffectAreRefused) {
  struct Case {
    descriptor::ModelFamily family;
    std::string keys, message;
  };
  const std::vector<std::string> full(8, R"("full_attention")");
  const std::string of_model = ": has no effect: the config.json of this model has ";
  for (const Case& one : std::vector<Case>{
           {deepseek_v3_family(),
            R"({"kv_lora_rnk": 24})",
            "model.args.kv_lora_rnk: unknown key; did you mean 'model.args.kv_lora_rank'?"},
           {deepseek_v3_family(),
            R"({"full_attention_interval": 2})",
            "model.args.full_attention_interval: unknown key. The config.json of"},
           {deepseek_v3_family(), R"({"kv_lora_rank": "x"})", "kv_lora_rank: expected"},
           {deepseek_v3_family(), R"({"hidden_act": "gelu"})", "model.args: hidden_act: expected silu, found gelu"},
           {deepseek_v3_family(), R"({"num_nextn_predict_layers": 1})", "num_nextn_predict_layers" + of_model + "0"},
           {gpt_oss_family(), R"({"sliding_window_pattern": 2})", "model.args.sliding_window_pattern: unknown key"},
           {gemma3_family(),
            fmt::format(R"({{"sliding_window_pattern": 2, "layer_types": [{}]}})", fmt::join(full, ", ")),
            "model.args.sliding_window_pattern: has no effect beside model.args.layer_types"},
           {qwen2_family(), R"({"attention_bias": true})", "model.args.attention_bias" + of_model + "false"},
           {mistral_family(), R"({"attention_bias": true})", "model.args.attention_bias" + of_model + "false"},
           {mixtral_family(), R"({"attention_bias": true})", "model.args.attention_bias" + of_model + "false"},
           {glm4_moe_family(), R"({"rotary_dim": 8})", "model.args.rotary_dim: unknown key"},
           {smollm3_family(),
            R"({"use_sliding_window": false, "sliding_window": 64})",
            "model.args.sliding_window" + of_model + "null"},
           {llama3_family(), R"({"torch_dtype": "bfloat16"})", "model.args.torch_dtype: is not a part of the shape"},
           {llama3_family(), R"({"model_type": "qwen3"})", "model.args.model_type: is not a part of the shape"}}) {
    EXPECT_THAT(error_of([&] { changed(one.family, one.keys); }), HasSubstr(one.message)) << one.keys;
  }
}

// After the tokenizer and other keys have changed the model.
TEST(ConfigKeys, ThatTheModelLostAreRefused) {
  const auto family = llama3_family();
  const Node keys = parse_json(R"({"eos_token_id": 5, "pad_token_id": 6})", "keys");
  const auto args = family.with_config_keys(*family.from_flavor("debugmodel"), keys, "model.args");
  descriptor::require_in_effect(*args, keys, "model.args");
  args->set_special_tokens(std::nullopt, 5, std::nullopt);
  const auto error = [&] { return error_of([&] { descriptor::require_in_effect(*args, keys, "model.args"); }); };
  EXPECT_THAT(error(), HasSubstr("model.args.pad_token_id: has no effect: the config.json of this model has nothing"));
  args->set_special_tokens(std::nullopt, 7, 6);
  EXPECT_THAT(error(), HasSubstr("model.args.eos_token_id: has no effect: the config.json of this model has 7"));
}

}  // namespace
}  // namespace lehr::model
