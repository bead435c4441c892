// RoPE tables of config.json, as transformers 5.23 reads them.
#include "lehr/model/rope_config.h"

#include <gmock/gmock.h>

#include <cmath>

#include "lehr/base/value_of.h"
#include "lehr/config/json.h"
#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/glm4_moe/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen3_next/family.h"
#include "test/model/changed_config.h"
#include "test/shard/one_device.h"

namespace lehr::model {
namespace {

using test::Changes;
using ::testing::HasSubstr;

Node config_of(const descriptor::ModelFamily& family) {
  return family.flavors.at("debugmodel")()->to_hf_config("float32");
}

Node written(const descriptor::ModelFamily& family, const Changes& changes) {
  return test::changed(family, config_of(family), changes)->to_hf_config("float32");
}

template <class Scaling>
Scaling scaling_of(const char* table, const RopeScalingContext& context) {
  return std::get<Scaling>(read_rope_scaling(parse_json(table, "config.json"), context));
}

TEST(RopeConfig, DynamicScalingBeginsAfterMaxPositionEmbeddings) {
  const char* table = R"({"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 8})";
  const RopeScalingContext context{.max_position_embeddings = 32, .original_max_position_embeddings = 16};
  EXPECT_EQ(scaling_of<nn::DynamicNtkRopeScaling>(table, context).original_max_position_embeddings, 32);
  // Also of a model whose max_position_embeddings was changed.
  DecoderConfig shape{.max_position_embeddings = 32};
  shape.rope_scaling = nn::DynamicNtkRopeScaling{.factor = 2, .original_max_position_embeddings = 32};
  shape.sliding_rope = Rope{.scaling = shape.rope_scaling};
  descriptor::ModelOverrides overrides;
  overrides.max_position_embeddings = 64;
  shape.apply(overrides);
  for (const nn::RopeScaling& scaling : {shape.rope_scaling, value_of(shape.sliding_rope, "sliding_rope").scaling}) {
    EXPECT_EQ(std::get<nn::DynamicNtkRopeScaling>(scaling).original_max_position_embeddings, 64);
  }
}

TEST(RopeConfig, TheTrainedLengthBesideTheTableCountsFirst) {
  const char* yarn = R"({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 8})";
  const char* bare_yarn = R"({"type": "yarn", "factor": 2})";
  const char* llama3 = R"({"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 8})";
  const RopeScalingContext both{.max_position_embeddings = 32, .original_max_position_embeddings = 16};
  const RopeScalingContext one{.max_position_embeddings = 32};
  EXPECT_EQ(scaling_of<nn::YarnRopeScaling>(yarn, both).original_max_position_embeddings, 16);
  EXPECT_EQ(scaling_of<nn::YarnRopeScaling>(yarn, one).original_max_position_embeddings, 8);
  EXPECT_EQ(scaling_of<nn::YarnRopeScaling>(bare_yarn, one).original_max_position_embeddings, 32);
  EXPECT_EQ(scaling_of<nn::Llama3RopeScaling>(llama3, both).original_max_position_embeddings, 16);
  EXPECT_EQ(scaling_of<nn::Llama3RopeScaling>(llama3, one).original_max_position_embeddings, 8);
  const Node config = written(llama3_family(), {{"rope_scaling", yarn}, {"original_max_position_embeddings", "16"}});
  EXPECT_EQ(config.at("rope_scaling").at("original_max_position_embeddings").as_int(), 16);
}

// In the table of either name.
TEST(RopeConfig, ReadsTheRotatedPartWhereItIsSaid) {
  const std::string table = R"({"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5})";
  for (const auto& family : {glm4_moe_family(), qwen3_next_family()}) {
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
      const Changes changes{
          {"rope_scaling", "absent"}, {"rope_parameters", "absent"}, {"partial_rotary_factor", "1"}, {name, table}};
      EXPECT_EQ(written(family, changes).at("partial_rotary_factor").as_double(), 0.5) << family.name << " " << name;
    }
  }
}

// In transformers, the scores have the factor of YaRN with every type of scaling: as if queries were larger.
TEST(RopeConfig, MscaleAllDimOfDeepseekScalesTheScores) {
  const at::NoGradGuard no_grad;
  const auto args_of = [](const std::string& scaling) {
    const Changes changes{
        {"num_hidden_layers", "1"}, {"first_k_dense_replace", "1"}, {"vocab_size", "32"}, {"rope_scaling", scaling}};
    return test::changed(deepseek_v3_family(), config_of(deepseek_v3_family()), changes);
  };
  const auto logits = [&](const std::string& scaling, double factor_of_queries) {
    const auto model = args_of(scaling)->build({});
    shard::test::make_real(*model);
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      if (name.ends_with("self_attn.q_b_proj.weight")) {
        parameter->value().mul_(factor_of_queries);
      }
    }
    return model->logits(model->forward({.input_ids = at::arange(9).unsqueeze(0)}).hidden_states);
  };
  const std::string factors = R"("factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0)";
  const double mscale = 0.1 * 0.7 * std::log(2.0) + 1;
  for (const char* type : {"linear", "dynamic", "llama3", "yarn", "default"}) {
    const bool is_default = std::string_view(type) == "default";
    const std::string plain = fmt::format(R"({{"rope_type": "{}", {})", type, factors);
    const std::string with_factor = plain + R"(, "mscale_all_dim": 0.7})";
    const double squared = is_default ? 1 : mscale * mscale;
    shard::test::expect_near(type, logits(with_factor, 1), logits(plain + "}", squared), logits(plain + "}", squared));
    const Node written = args_of(with_factor)->to_hf_config("float32").at("rope_scaling");
    EXPECT_TRUE(is_default || written.at("mscale_all_dim").as_double() == 0.7) << type;
  }
}

TEST(RopeConfig, AnEmptyTableOfScalingIsNone) {
  const Changes empty{{"rope_scaling", "{}"}, {"rope_parameters", "absent"}};
  EXPECT_EQ(written(gpt_oss_family(), empty).at("rope_scaling").at("rope_type").as_string(), "yarn");
  const Changes plain{{"rope_scaling", "{}"}, {"rope_parameters", "{}"}};
  EXPECT_TRUE(written(gpt_oss_family(), plain).at("rope_scaling").is_null());
}

// Keys of tables for kinds of layers that versions of transformers read differently.
TEST(RopeConfig, RefusesAmbiguousScalingOfLayers) {
  for (const auto& family : {gemma3_family(), olmo3_family()}) {
    const auto problem = [&](const char* scaling) {
      return test::problem_of_changed(family, config_of(family), {{"rope_scaling", scaling}});
    };
    EXPECT_THAT(
        problem(R"({"type": "linear", "factor": 2})"), HasSubstr("config.json: rope_scaling.type: expected the key"));
    EXPECT_THAT(
        problem(R"({"rope_type": "yarn", "factor": 2, "truncate": false})"),
        HasSubstr("config.json: rope_scaling.truncate: expected true, found false"));
    EXPECT_EQ(problem(R"({"rope_type": "linear", "type": "linear", "factor": 2})"), "accepted");
    const Node themed =
        written(family, {{"rope_scaling", R"({"rope_type": "linear", "factor": 2, "rope_theta": 77})"}});
    EXPECT_EQ(themed.at("rope_parameters").at("full_attention").at("rope_theta").as_double(), 77);
  }
}

}  // namespace
}  // namespace lehr::model
