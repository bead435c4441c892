// Closed-form sizes and FLOPs of blocks, compared with built models and with the FLOPs that they execute.
#include "lehr/descriptor/block_account.h"

#include <gmock/gmock.h>

#include "lehr/descriptor/block_picture.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/nn/module.h"
#include "test/model/heterogeneous.h"
#include "test/shard/one_device.h"

namespace lehr::model::test {
namespace {

using descriptor::Account;
using descriptor::blocks_of;
using ::testing::HasSubstr;
using ::testing::Not;

struct Case {
  std::string model_type;
  std::vector<LayerShape> layers;
};

std::vector<Case> cases() {
  return {
      {"qwen3", kMixed},
      {"llama", kMixed},
      {"qwen3", kWithHoles},
      {"qwen3_moe", kMixtures},
      {"olmo2", kMixed},
      {"qwen2", kMixed},
      {"mistral", kMixed},
      {"smollm3", kMixed},
      {"olmo3", kMixed},
      {"gemma3_text", kMixed},
      {"mixtral", kMixtures},
      {"gpt_oss", kOnlyMixtures},
      {"glm4_moe", kSharedMixtures},
      {"qwen3", kWithLinear},
      {"gemma3_text", kWithLinear},
      {"olmo2", kWithLinear},
      {"qwen3_moe", kMixturesWithLinear}};
}

TEST(BlockAccounts, CountTheParametersOfBuiltModels) {
  for (const auto& [model_type, layers] : cases()) {
    const auto args = args_of(model_type, layers);
    const auto account = blocks_of(*args, {}).account;
    const auto model = args->build({});
    EXPECT_EQ(account.total().num_parameters, nn::count_parameters(*model));
    for (size_t i = 0; i < layers.size(); ++i) {
      int64_t in_layer = 0;
      for (const auto& [name, parameter] : nn::named_parameters(*model)) {
        const bool counts = name.starts_with(fmt::format("model.layers.{}.", i)) && !parameter->is_state();
        in_layer += counts ? parameter->numel() : 0;
      }
      EXPECT_EQ(account.layers[i].total().num_parameters, in_layer) << model_type << " layer " << i;
    }
  }
}

TEST(BlockAccounts, CountTheActualHeads) {
  auto classifier = args_of("qwen3", kMixed);
  classifier->set_classification(3, 0);
  EXPECT_EQ(blocks_of(*classifier, {}).account.total().num_parameters, nn::count_parameters(*classifier->build({})));
  for (const bool tied : {false, true}) {
    const auto args = qwen3_dense_family().from_hf_config(parse_json(config_json("qwen3", kMixed, 50, tied), "c"));
    EXPECT_EQ(blocks_of(*args, {}).account.total().num_parameters, nn::count_parameters(*args->build({})));
  }
}

TEST(BlockAccounts, AgreeWithPublishedSizes) {
  const auto families = all_families();
  const auto counts = [&](const char* family, const char* flavor) {
    return blocks_of(*families.from_flavor(family, flavor), {}).account.total();
  };
  EXPECT_EQ(counts("qwen3", "8B").num_parameters, 8'190'735'360);
  EXPECT_EQ(counts("llama3", "8B").num_parameters, 8'030'261'248);
  const Account moe = counts("qwen3_moe", "30B-A3B");
  EXPECT_EQ(moe.num_parameters, 30'532'122'624);
  EXPECT_NEAR(static_cast<double>(moe.active_parameters), 3.35e9, 0.01e9) << "3.3B activated, says the model card";
  EXPECT_EQ(counts("gpt_oss", "20b").num_parameters, 20'914'757'184);
  EXPECT_EQ(counts("gpt_oss", "120b").num_parameters, 116'829'156'672);
  EXPECT_EQ(counts("glm4_moe", "355B").num_parameters, 352'797'814'784);
}

// The meter counts the FLOPs of operators: here of a prompt of T tokens, and of the logits of the last one.
TEST(BlockAccounts, CountTheExecutedFlops) {
  constexpr int64_t kTokens = 11;
  for (const auto& [model_type, layers] : cases()) {
    const auto args = args_of(model_type, layers);
    const auto model = args->build({});
    shard::test::make_real(*model);
    model->eval();
    const at::NoGradGuard no_grad;
    const at::Tensor ids = at::arange(kTokens).unsqueeze(0);
    OperationMeter meter;
    const at::Tensor states = model->forward({.input_ids = ids}).hidden_states;
    model->logits(states.narrow(1, kTokens - 1, 1));
    // The meter counts half of all pairs of positions, T^2 / 2; exactly there are T (T + 1) / 2.
    const double attention = meter.counts().attention_flops * (kTokens + 1) / kTokens;
    auto blocks = blocks_of(*args, {.num_tokens = kTokens});
    // In layers with a window or sinks, the CPU computes all pairs and masks those outside.
    int64_t masked = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      const bool masks = slides(model_type, static_cast<int64_t>(i)) || model_type == "gpt_oss";
      masked += masks && layers[i].kv_heads > 0 ? 4 * kHeads * kHeadDim * kTokens * (kTokens - 1) / 2 : 0;
    }
    blocks.form.windows.clear();
    const Account all = descriptor::account_for(blocks.form, blocks.blocks, blocks.work).total();
    EXPECT_EQ(meter.counts().matmul_flops + attention, all.prefill_flops + static_cast<double>(masked)) << model_type;
  }
}

TEST(BlockTable, ShowsEachKindOfLayerOnceWithItsSizes) {
  const std::vector<LayerShape> layers{{4, 32}, {4, 32}, {0, 16}, {2, 0}};
  const std::string table = format_blocks(blocks_of(*args_of("qwen3", layers), {.num_tokens = 100}));
  EXPECT_THAT(table, HasSubstr("4 layers of width 24, 8 query heads of 6"));
  EXPECT_THAT(table, HasSubstr("\n0-1, each   4 KV heads  32 "));
  EXPECT_THAT(table, HasSubstr("\n2           none        16 "));
  EXPECT_THAT(table, HasSubstr("\n3           2 KV heads  none "));
  EXPECT_THAT(table, Not(HasSubstr("active for a token")));
  const std::string windows = format_blocks(blocks_of(*args_of("gemma3_text", layers), {.num_tokens = 100}));
  EXPECT_THAT(windows, HasSubstr("\n0           4 KV heads, window 3  32 "));
  EXPECT_THAT(windows, HasSubstr("\n1           4 KV heads            32 "));
  EXPECT_THAT(windows, HasSubstr("\n2           none                  16 "));
  const std::string mixture = format_blocks(blocks_of(*args_of("qwen3_moe", kMixtures), {}));
  EXPECT_THAT(mixture, HasSubstr("2 of 6 x 8"));
  EXPECT_THAT(mixture, HasSubstr("active for a token"));
}

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    ++found;
  }
  return found;
}

TEST(BlockPicture, HasABarPerSubblockAndNoneForANoOp) {
  const auto model = blocks_of(*args_of("qwen3", kMixed), {});
  const std::string svg = draw_blocks(model, "a <child>");
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("a &lt;child&gt;"));
  // Of six layers, four have attention, in three rows; five have an FFN, in two rows.
  EXPECT_EQ(count(svg, "<rect class=\"attention\""), 4 * 3);
  EXPECT_EQ(count(svg, "<rect class=\"ffn\""), 5 * 2);
  EXPECT_THAT(svg, HasSubstr("layer 2, attention: none: 0 parameters"));
  const std::string mixtures = draw_blocks(blocks_of(*args_of("qwen3_moe", kMixtures), {}), "mixtures");
  EXPECT_EQ(count(mixtures, "<rect class=\"experts\""), 3 * 2);
  EXPECT_EQ(count(mixtures, "<rect class=\"experts idle\""), 3);
  EXPECT_EQ(count(mixtures, "<rect class=\"ffn\""), 2);
}

}  // namespace
}  // namespace lehr::model::test
