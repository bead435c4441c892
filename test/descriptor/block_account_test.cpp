// The sizes of sub-blocks, compared with published figures.
#include "lehr/descriptor/block_account.h"

#include <gmock/gmock.h>

#include <string>

#include "test/base/error_of.h"
#include "test/descriptor/blocks.h"

namespace lehr::descriptor {
namespace {

using test::block;

constexpr double kMiB = 1024.0 * 1024.0;

BlockConfig mixture(int64_t kv_heads, const MoESubblock& moe) {
  BlockConfig config = block(kv_heads, 0);
  config.ffn = moe;
  return config;
}

double mebibytes(const Account& account) {
  return (static_cast<double>(account.weight_bytes) + account.kv_cache_bytes) / kMiB;
}

// The nine models that NVIDIA Model-Optimizer's puzzletron is tested with
// (tests/gpu/torch/puzzletron/test_puzzletron.py): hidden size 256, 32 query and 8 KV heads, FFN width 512, 128 tokens
// of vocabulary; memory of 96 sequences of 8192 tokens in bfloat16. For the head size of the cache, upstream always
// uses hidden_size / num_attention_heads = 8: `upstream_mib` is what upstream expects, `mib` is the actual size.
struct Published {
  std::string name;
  DecoderForm form;
  std::vector<BlockConfig> blocks;
  int64_t parameters;
  double upstream_mib, mib;
};

DecoderForm tiny(int64_t head_dim, DecoderForm flags = {}) {
  flags.vocab_size = flags.head_rows = 128;
  flags.hidden_size = 256;
  flags.num_attention_heads = 32;
  flags.head_dim = head_dim;
  return flags;
}

std::vector<Published> published() {
  const std::vector<BlockConfig> dense(2, block(8, 512));
  // The cache of a layer takes 192 MiB with heads of 8, 3072 with heads of 128, 1536 with heads of 64.
  return {
      {"Llama-3.1-8B", tiny(128), dense, 6'096'128, 395.6274, 395.6274 - 2 * 192 + 2 * 3072},
      {"Llama-3.2-3B", tiny(128), dense, 6'096'128, 395.6274, 395.6274 - 2 * 192 + 2 * 3072},
      {"Mistral-24B", tiny(128), dense, 6'096'128, 395.6274, 395.6274 - 2 * 192 + 2 * 3072},
      {"Qwen2.5-7B", tiny(8, {.qkv_bias = true}), dense, 1'181'696, 386.2539, 386.2539},
      {"Qwen3-8B", tiny(128, {.qk_norm = true}), dense, 6'096'640, 395.6284, 395.6284 - 2 * 192 + 2 * 3072},
      {"gpt-oss-20b",
       tiny(
           64, {.qkv_bias = true, .output_bias = true, .attention_sinks = true, .ffn_bias = true, .router_bias = true}),
       std::vector<BlockConfig>(
           2, mixture(8, {.num_local_experts = 32, .num_experts_per_tok = 4, .expert_intermediate_dim = 512})),
       27'959'168,
       437.3279,
       437.3279 - 2 * 192 + 2 * 1536},
      {"Qwen3-VL-30B",
       tiny(128, {.qk_norm = true}),
       std::vector<BlockConfig>(
           2, mixture(8, {.num_local_experts = 16, .num_experts_per_tok = 8, .expert_intermediate_dim = 256})),
       11'609'856,
       406.1440,
       406.1440 - 2 * 192 + 2 * 3072},
      {"Nemotron-Nano-12B-v2",  // one layer of attention, one FFN layer
       tiny(128, {.ffn_matrices = 2}),
       {block(8, 0), block(0, 512)},
       2'949'888,
       197.6265,
       197.6265 - 192 + 3072},
      {"Nemotron-3-Nano-30B",
       tiny(128, {.ffn_matrices = 2}),
       {block(8, 0),
        mixture(
            0,
            {.num_local_experts = 128,
             .num_experts_per_tok = 6,
             .expert_intermediate_dim = 1856,
             .shared_expert_intermediate_dim = 3712})},
       126'255'872,
       432.8140,
       432.8140 - 192 + 3072}};
}

constexpr Workload kUpstreamsWork{.num_tokens = 8192, .num_sequences = 96};

TEST(BlockAccount, EqualsThePublishedParametersAndMemoryOfNineModels) {
  for (const Published& model : published()) {
    const Account all = account_for(model.form, model.blocks, kUpstreamsWork).total();
    EXPECT_EQ(all.num_parameters, model.parameters) << model.name;
    EXPECT_NEAR(mebibytes(all), model.mib, 1e-4) << model.name;  // upstream prints four digits
    // With upstream's head size, the result is upstream's figure.
    Account theirs = all;
    theirs.kv_cache_bytes = all.kv_cache_bytes / model.form.head_dim * (model.form.hidden_size / 32);
    EXPECT_NEAR(mebibytes(theirs), model.upstream_mib, 1e-4) << model.name;
  }
}

// Upstream counts tied embeddings twice.
TEST(BlockAccount, CountsTiedEmbeddingsOnce) {
  DecoderForm form = tiny(128);
  form.tied_head = true;
  const std::vector<BlockConfig> blocks(2, block(8, 512));
  const ModelAccount account = account_for(form, blocks, kUpstreamsWork);
  EXPECT_EQ(account.total().num_parameters, 6'063'360);
  EXPECT_EQ(account.head.num_parameters, 256) << "the final norm";
  EXPECT_EQ(account.head.decode_flops, 2 * 128 * 256) << "it is multiplied with all the same";
}

// Upstream's logs for Llama-3.1-8B without the attention of some layers, and its guide's figures for Qwen3-8B. The
// heads of both have the size hidden_size / num_attention_heads, so upstream is right.
TEST(BlockAccount, EqualsThePublishedFiguresOfPrunedModels) {
  DecoderForm llama{.vocab_size = 128256, .hidden_size = 4096, .num_attention_heads = 32, .head_dim = 128};
  llama.head_rows = llama.vocab_size;
  struct Case {
    size_t layers_with_attention;
    int64_t parameters;
    double mib;
    int64_t attention_parameters;
    double cache_mib;
  };
  for (const Case& one :
       {Case{32, 8'030'261'248, 113'620.5078125, 1'342'308'352, 98'304},
        Case{26, 7'778'578'432, 94'708.4609375, 1'090'625'536, 79'872},
        Case{20, 7'526'895'616, 75'796.4140625, 838'942'720, 61'440}}) {
    std::vector<BlockConfig> blocks(32, block(8, 14336));
    for (size_t i = one.layers_with_attention; i < blocks.size(); ++i) {
      blocks[i] = block(0, 14336);
    }
    const ModelAccount account = account_for(llama, blocks, kUpstreamsWork);
    Account attention, ffn;
    for (const LayerAccount& layer : account.layers) {
      attention += layer.attention;
      ffn += layer.ffn;
    }
    EXPECT_EQ(account.total().num_parameters, one.parameters);
    EXPECT_EQ(mebibytes(account.total()), one.mib);
    EXPECT_EQ(attention.num_parameters, one.attention_parameters);
    EXPECT_EQ(attention.kv_cache_bytes / kMiB, one.cache_mib);
    EXPECT_EQ(ffn.num_parameters, 5'637'275'648);
    EXPECT_EQ(mebibytes(ffn), 10'752.25);
  }
  DecoderForm qwen{
      .vocab_size = 151936, .hidden_size = 4096, .num_attention_heads = 32, .head_dim = 128, .qk_norm = true};
  qwen.head_rows = qwen.vocab_size;
  const Account all = account_for(qwen, std::vector<BlockConfig>(36, block(8, 12288)), kUpstreamsWork).total();
  EXPECT_EQ(all.num_parameters, 8'190'735'360);
  EXPECT_EQ(mebibytes(all), 126'214.587890625);
}

TEST(BlockAccount, IsZeroForNoOpSubblocks) {
  const ModelAccount account = account_for(tiny(128), {block(0, 0), block(8, 0), block(0, 512)}, {});
  EXPECT_EQ(account.layers[0].total(), Account{});
  EXPECT_EQ(account.layers[1].ffn, Account{});
  EXPECT_EQ(account.layers[2].attention, Account{});
  EXPECT_EQ(account.layers[2].total().kv_cache_bytes, 0);
}

// Only the experts of a token count. Upstream's active parameters are different: they ignore top-k.
TEST(BlockAccount, CountsTheExpertsOfATokenAsActive) {
  const MoESubblock moe{
      .num_local_experts = 16,
      .num_experts_per_tok = 3,
      .expert_intermediate_dim = 10,
      .shared_expert_intermediate_dim = 20};
  DecoderForm form = tiny(8);
  const Account ffn = account_for(form, {mixture(8, moe)}, {.num_tokens = 5}).layers[0].ffn;
  const int64_t expert = 3 * 256 * 10, shared = 3 * 256 * 20, router = 16 * 256, norm = 256;
  EXPECT_EQ(ffn.num_parameters, 16 * expert + shared + router + norm);
  EXPECT_EQ(ffn.active_parameters, 3 * expert + shared + router + norm);
  EXPECT_EQ(ffn.decode_flops, 2 * (3 * expert + shared + router));
  EXPECT_EQ(ffn.prefill_flops, 5 * ffn.decode_flops);
}

// Decoding tokens one by one does the same work as one prefill, in every layer.
TEST(BlockAccount, PrefillIsTheSumOfDecodes) {
  const std::vector<BlockConfig> blocks{
      block(8, 512), mixture(2, {.num_local_experts = 4, .num_experts_per_tok = 2, .expert_intermediate_dim = 8})};
  for (const std::vector<int64_t>& windows : {std::vector<int64_t>{}, {6, 0}, {0, 1}}) {
    DecoderForm form = tiny(128);
    form.windows = windows;
    double decoded = 0;
    for (int64_t tokens = 1; tokens <= 20; ++tokens) {
      const Account layers = account_for(form, blocks, {.num_tokens = tokens}).all_layers();
      decoded += layers.decode_flops;
      EXPECT_EQ(layers.prefill_flops, decoded) << tokens;
    }
  }
}

TEST(BlockAccount, CountsTheTokensInAWindow) {
  DecoderForm form = tiny(128);
  form.windows = {6};
  const auto decode = [&](int64_t tokens) {
    return account_for(form, {block(8, 512)}, {.num_tokens = tokens}).layers[0].attention.decode_flops;
  };
  EXPECT_EQ(decode(6) - decode(5), 4 * 32 * 128) << "32 query heads";
  EXPECT_EQ(decode(7), decode(6));
  const auto cache = [&](int64_t tokens) {
    return account_for(form, {block(8, 512)}, {.num_tokens = tokens}).total().kv_cache_bytes;
  };
  EXPECT_EQ(cache(5), 2 * 8 * 128 * 5 * 2);
  EXPECT_EQ(cache(20), 2 * 8 * 128 * 6 * 2) << "the tokens that the next one sees, with its own";
}

TEST(BlockAccount, CountsTheWindowOfALayersOwn) {
  DecoderForm form = tiny(128);
  form.windows = {6, 0};
  std::vector<BlockConfig> own{block(8, 512), block(8, 512)};
  std::get<AttentionSubblock>(own[0].attention).window = 3;
  std::get<AttentionSubblock>(own[1].attention).window = 9;
  DecoderForm of_model = tiny(128);
  of_model.windows = {3, 9};
  const Workload work{.num_tokens = 20};
  EXPECT_EQ(account_for(form, own, work).total(), account_for(of_model, {block(8, 512), block(8, 512)}, work).total());
}

TEST(BlockAccount, DependsOnDtypesAndSequences) {
  const std::vector<BlockConfig> blocks{block(8, 512)};
  const Account one = account_for(tiny(128), blocks, {.num_tokens = 10}).total();
  const Account more =
      account_for(
          tiny(128), blocks, {.num_tokens = 10, .num_sequences = 7, .bytes_per_weight = 4, .bytes_per_cached = 1})
          .total();
  EXPECT_EQ(one.weight_bytes, 2 * one.num_parameters);
  EXPECT_EQ(one.kv_cache_bytes, 2 * 8 * 128 * 10 * 2);
  EXPECT_EQ(more.weight_bytes, 4 * one.num_parameters);
  EXPECT_EQ(more.kv_cache_bytes, 2 * 8 * 128 * 10 * 7);
  EXPECT_EQ(more.decode_flops, one.decode_flops) << "of one sequence";
}

// 10^10 sequences of 10^8 tokens: more than 64-bit integers hold, to the 53 bits of a double.
TEST(BlockAccount, CountsWorkloadsBeyond64Bits) {
  const Account all =
      account_for(tiny(128), {block(8, 512)}, {.num_tokens = 100'000'000, .num_sequences = 10'000'000'000})
          .layers[0]
          .attention;
  EXPECT_DOUBLE_EQ(all.kv_cache_bytes, 2.0 * 8 * 128 * 1e8 * 1e10 * 2);
  const double matrices = 256.0 * (2 * 32 + 2 * 8) * 128;
  EXPECT_DOUBLE_EQ(all.prefill_flops, 2 * matrices * 1e8 + 4.0 * 32 * 128 * (1e8 * (1e8 + 1) / 2));
}

TEST(BlockAccount, RefusesSizesThatOverflow) {
  DecoderForm form = tiny(128);
  form.hidden_size = int64_t{1} << 62;
  EXPECT_THAT(
      any_error::error_of([&] { account_for(form, {block(8, 512)}, {}); }), ::testing::HasSubstr("too large to count"));
}

}  // namespace
}  // namespace lehr::descriptor
