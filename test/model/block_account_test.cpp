// Closed-form sizes and FLOPs of blocks, compared with built models and with the FLOPs that they execute.
#include "lehr/descriptor/block_account.h"

#include <gmock/gmock.h>

#include "lehr/descriptor/block_picture.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/model/nemotron_h/family.h"
#include "lehr/nn/module.h"
#include "lehr/ops/gated_delta_rule/kernels.h"
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
      {"minimax_m2", kMixtures},
      {"deepseek_v3", kLatentMixtures},
      {"qwen3_next", kDeltaMixtures},
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
  classifier->set_token_classification(3, 0);
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
  const Account latent = counts("deepseek_v3", "671B");
  EXPECT_EQ(latent.num_parameters, 671'026'404'352);
  EXPECT_NEAR(static_cast<double>(latent.active_parameters), 37.6e9, 0.1e9) << "37B activated, says the report";
  const Account kimi = counts("deepseek_v3", "Kimi-K2-1T");
  EXPECT_EQ(kimi.num_parameters, 1'026'408'209'408);
  EXPECT_NEAR(static_cast<double>(kimi.active_parameters), 32.9e9, 0.1e9) << "32B activated, says the report";
  const Account minimax = counts("minimax_m2", "230B-A10B");
  EXPECT_EQ(minimax.num_parameters, 228'689'748'992);
  EXPECT_NEAR(static_cast<double>(minimax.active_parameters), 11.03e9, 0.01e9)
      << "10B activated, says the model card, which leaves out 1.2B of embeddings and head";
  const Account projected = blocks_of(*nemotron_h_family().from_flavor("Super-120B-A12B"), {}).account.total();
  EXPECT_EQ(projected.num_parameters, 120'668'687'360);
  EXPECT_NEAR(static_cast<double>(projected.active_parameters), 12.7e9, 0.1e9) << "12.7B active, says the report";
  const Account delta = counts("qwen3_next", "80B-A3B");
  EXPECT_NEAR(static_cast<double>(delta.num_parameters), 79.7e9, 0.1e9) << "80B, says the model card";
  EXPECT_NEAR(static_cast<double>(delta.active_parameters), 3.9e9, 0.3e9) << "3B activated, says the model card";
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
    auto blocks = blocks_of(*args, {.num_tokens = kTokens});
    // A scan by chunks adds triangles to the recurrence that the account counts.
    double scans = 0, recurrences = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (is_delta(model_type, static_cast<int64_t>(i)) && layers[i].kv_heads > 0) {
        recurrences += 6 * kTokens * kDeltaHeads * kDeltaKeyDim * kDeltaValueDim;
        scans += 2 * kTokens * ops::kDeltaChunk * (kDeltaHeads * kDeltaValueDim + kDeltaKeyHeads * kDeltaKeyDim);
      }
    }
    const double of_pairs = meter.counts().attention_flops - recurrences - scans;
    const double attention = of_pairs * (kTokens + 1) / kTokens + recurrences;
    // In layers with a window, sinks, or keys wider than values, the CPU computes all pairs and masks those outside.
    const bool is_latent = model_type == "deepseek_v3";
    const int64_t of_pair = 2 * kHeads * (is_latent ? kPlainDim + kHeadDim + kValueDim : 2 * kHeadDim);
    int64_t masked = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      const bool masks = slides(model_type, static_cast<int64_t>(i)) || model_type == "gpt_oss" || is_latent;
      masked += masks && layers[i].kv_heads > 0 ? of_pair * kTokens * (kTokens - 1) / 2 : 0;
    }
    blocks.form.windows.clear();
    const Account all = descriptor::account_for(blocks.form, blocks.blocks, blocks.work).total();
    EXPECT_EQ(meter.counts().matmul_flops + attention, all.prefill_flops + static_cast<double>(masked)) << model_type;
  }
}

// Routed experts between projections, a shared one and a router: no attention, whose pairs would have to be counted.
TEST(BlockAccounts, CountTheExecutedFlopsOfExpertsInALatentSpace) {
  Node config = nemotron_h_family().from_flavor("debugmodel_moe")->to_hf_config("float32");
  for (const auto& [key, value] : {std::pair("num_hidden_layers", 1), {"moe_latent_size", 24}, {"vocab_size", 50}}) {
    config.set(key, Node(int64_t{value}));
  }
  config.set("hybrid_override_pattern", Node("E"));
  const auto args = nemotron_h_family().from_hf_config(config);
  const auto model = args->build({});
  shard::test::make_real(*model);
  model->eval();
  const at::NoGradGuard no_grad;
  OperationMeter meter;
  const at::Tensor states = model->forward({.input_ids = at::arange(11).unsqueeze(0)}).hidden_states;
  model->logits(states.narrow(1, 10, 1));
  const Account all = blocks_of(*args, {.num_tokens = 11}).account.total();
  EXPECT_EQ(meter.counts().matmul_flops, all.prefill_flops);
  EXPECT_EQ(all.num_parameters, nn::count_parameters(*model));
}

// Of the last of T tokens, the others cached.
TEST(BlockAccounts, CountTheExecutedFlopsOfDecoding) {
  constexpr int64_t kTokens = 11;
  for (const char* model_type : {"qwen3", "qwen3_moe", "deepseek_v3", "qwen3_next"}) {
    const auto& layers = layers_of(model_type);
    const auto args = args_of(model_type, layers);
    const auto model = args->build({});
    shard::test::make_real(*model);
    model->eval();
    const at::NoGradGuard no_grad;
    const at::Tensor ids = at::arange(kTokens).unsqueeze(0);
    nn::KeyValueCaches caches(layers.size());
    model->forward({.input_ids = ids.narrow(1, 0, kTokens - 1), .caches = &caches});
    OperationMeter meter;
    const at::Tensor states =
        model->forward({.input_ids = ids.narrow(1, kTokens - 1, 1), .caches = &caches}).hidden_states;
    model->logits(states);
    double triangles = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      triangles += is_delta(model_type, static_cast<int64_t>(i)) && layers[i].kv_heads > 0
                       ? 2 * ops::kDeltaChunk * (kDeltaHeads * kDeltaValueDim + kDeltaKeyHeads * kDeltaKeyDim)
                       : 0;
    }
    const Account all = blocks_of(*args, {.num_tokens = kTokens}).account.total();
    EXPECT_EQ(meter.counts().matmul_flops + meter.counts().attention_flops, all.decode_flops + triangles) << model_type;
  }
}

TEST(BlockAccounts, CountWhatIsCached) {
  constexpr int64_t kTokens = 11, kRows = 3;
  const auto of_layers = [&](const char* model_type) {
    return blocks_of(
               *args_of(model_type, layers_of(model_type)),
               {.num_tokens = kTokens, .num_sequences = kRows, .bytes_per_cached = 8})
        .account.layers;
  };
  EXPECT_EQ(of_layers("deepseek_v3")[0].attention.kv_cache_bytes, 8 * kRows * kTokens * (kLatent + kHeadDim));
  // In float64, as the model is. A state is as large after one token as after many.
  const auto args = args_of("qwen3_next", kDeltaMixtures);
  const auto model = args->build({});
  shard::test::make_real(*model);
  model->eval();
  const at::NoGradGuard no_grad;
  nn::KeyValueCaches caches(kDeltaMixtures.size());
  model->forward({.input_ids = at::arange(2 * kRows).view({kRows, 2}), .caches = &caches});
  const auto accounts = of_layers("qwen3_next");
  for (size_t i = 0; i < caches.size(); ++i) {
    int64_t bytes = 0;
    for (const at::Tensor& state : caches[i].states()) {
      bytes += static_cast<int64_t>(state.nbytes());
    }
    if (bytes > 0) {
      EXPECT_EQ(accounts[i].attention.kv_cache_bytes, static_cast<double>(bytes)) << i;
    }
  }
  EXPECT_GT(accounts[0].attention.kv_cache_bytes, 0);
  // In bfloat16 the inputs of the convolutions take half, and the state, which stays in float32, does not.
  const auto half = blocks_of(*args, {.num_tokens = 1, .num_sequences = 1, .bytes_per_cached = 2}).account.layers[0];
  const auto whole = blocks_of(*args, {.num_tokens = 1, .num_sequences = 1, .bytes_per_cached = 4}).account.layers[0];
  const double convolved = 3 * (2 * kDeltaKeyHeads * kDeltaKeyDim + kDeltaHeads * kDeltaValueDim);
  EXPECT_EQ(whole.attention.kv_cache_bytes - half.attention.kv_cache_bytes, 2 * convolved);
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
  EXPECT_THAT(
      format_blocks(blocks_of(*args_of("deepseek_v3", kLatentMixtures), {})),
      HasSubstr(fmt::format("latent of {} + {} ", kLatent, kHeadDim)));
  const std::string delta = format_blocks(blocks_of(*args_of("qwen3_next", kDeltaMixtures), {}));
  EXPECT_THAT(delta, HasSubstr(fmt::format("\n0           gated DeltaNet, {} heads", kDeltaHeads)));
  EXPECT_THAT(delta, HasSubstr("\n1           2 KV heads "));
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
