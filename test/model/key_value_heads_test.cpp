// num_key_value_heads in config.json: null or absent, as the classes of transformers read it.
#include <gmock/gmock.h>

#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/glm4_moe/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/minimax_m2/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/mixtral/family.h"
#include "lehr/model/nemotron_h/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_5/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/qwen3_next/family.h"
#include "lehr/model/smollm3/family.h"
#include "test/model/changed_config.h"

namespace lehr::model {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::StartsWith;

Node config_of(const descriptor::ModelFamily& family) {
  return family.from_flavor("debugmodel")->to_hf_config("float32");
}

// The message of the usage error for the debug model's config.json with this value, or "accepted".
std::string problem_with(const descriptor::ModelFamily& family, const char* value) {
  return test::problem_of_changed(family, config_of(family), {{"num_key_value_heads", value}});
}

// Null is the number of heads in every class that takes it.
TEST(KeyValueHeads, AreAsManyAsHeadsIfNull) {
  for (const auto& family :
       {llama3_family(),
        qwen2_family(),
        qwen3_dense_family(),
        smollm3_family(),
        olmo2_family(),
        olmo3_family(),
        deepseek_v3_family()}) {
    const int64_t heads = config_of(family).at("num_attention_heads").as_int();
    const Node written =
        test::changed(family, config_of(family), {{"num_key_value_heads", "null"}})->to_hf_config("float32");
    EXPECT_EQ(written.at("num_key_value_heads").as_int(), heads) << family.name;
  }
}

// As their classes in transformers, whose key is an int.
TEST(KeyValueHeads, AreRefusedIfNullInOtherFamilies) {
  for (const auto& family :
       {mistral_family(),
        qwen3_moe_family(),
        gemma3_family(),
        mixtral_family(),
        gpt_oss_family(),
        glm4_moe_family(),
        minimax_m2_family(),
        qwen3_next_family(),
        qwen3_5_family(),
        qwen3_5_moe_family(),
        nemotron_h_family()}) {
    EXPECT_THAT(
        problem_with(family, "null"),
        AllOf(StartsWith("config.json: num_key_value_heads: expected"), EndsWith("found null")))
        << family.name;
  }
}

// Their classes have numbers of their own.
TEST(KeyValueHeads, AreRequiredWhereTheClassHasANumber) {
  for (const auto& family : {qwen2_family(), qwen3_dense_family(), smollm3_family(), mistral_family()}) {
    EXPECT_EQ(problem_with(family, "absent"), "config.json: 'num_key_value_heads' is missing");
  }
}

}  // namespace
}  // namespace lehr::model
