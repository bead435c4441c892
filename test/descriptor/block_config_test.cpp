// Block configs in config.json files: read in every dialect, checked by name and value, written in one.
#include "lehr/descriptor/block_config.h"

#include <gmock/gmock.h>

#include "lehr/config/json.h"
#include "test/base/error_of.h"
#include "test/descriptor/blocks.h"

namespace lehr::descriptor {
namespace {

using test::block;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model of three layers, hidden size 8192, 64 query heads.
LayersByDefault model() {
  return {
      .blocks = {block(8, 28672), block(8, 28672), block(8, 28672)}, .hidden_size = 8192, .num_attention_heads = 64};
}

std::vector<BlockConfig> read(const std::string& text, const LayersByDefault& by_default = model()) {
  return read_block_configs(parse_json(text, "m/config.json"), by_default).value();
}

std::string problem(const std::string& text, const LayersByDefault& by_default = model()) {
  return error_of([&] { read(text, by_default); });
}

// block_configs of three layers; the second is the given one.
std::string second(const std::string& attention, const std::string& ffn, const std::string& more = "") {
  const std::string usual = R"({"attention": {"num_key_value_heads": 8}, "ffn": {"intermediate_size": 28672}})";
  return fmt::format(
      R"({{"block_configs": [{0}, {{"attention": {1}, "ffn": {2}{3}}}, {0}]}})", usual, attention, ffn, more);
}
const std::string kHeads = R"({"num_key_value_heads": 8})";
const std::string kWidth = R"({"intermediate_size": 64})";

TEST(BlockConfigs, AreAbsentInAnOrdinaryConfig) {
  EXPECT_FALSE(read_block_configs(parse_json("{}", "config.json"), model()));
  EXPECT_FALSE(read_block_configs(parse_json(R"({"block_configs": null})", "config.json"), model()));
}

TEST(BlockConfigs, ReadPuzzletronsDialect) {
  const auto blocks = read(R"({"block_configs": [
    {"attention": {"no_op": false, "replace_with_linear": false, "sparsify": null, "weights_precision": "bf16",
                   "num_key_value_heads": 4, "llama4": null, "mamba": null},
     "ffn": {"no_op": false, "replace_with_linear": false, "sparsify": null, "weights_precision": "bf16", "moe": null,
             "intermediate_size": 11520}, "parallel_blocks": null},
    {"attention": {"no_op": true, "replace_with_linear": false, "sparsify": null, "weights_precision": "bf16",
                   "num_key_value_heads": null, "llama4": null, "mamba": null},
     "ffn": {"no_op": true, "replace_with_linear": false, "sparsify": null, "weights_precision": "bf16", "moe": null,
             "intermediate_size": null}, "parallel_blocks": null},
    {"attention": {"num_key_value_heads": 64},
     "ffn": {"moe": {"num_local_experts": 16, "num_experts_per_tok": 4, "expert_intermediate_dim": 256,
                     "shared_expert_intermediate_dim": 512}}}]})");
  const BlockConfig mixture{
      .attention = AttentionSubblock{64},
      .ffn = MoESubblock{
          .num_local_experts = 16,
          .num_experts_per_tok = 4,
          .expert_intermediate_dim = 256,
          .shared_expert_intermediate_dim = 512}};
  EXPECT_THAT(blocks, ElementsAre(block(4, 11520), block(0, 0), mixture));
  EXPECT_EQ(describe(blocks[0]), "4 KV heads, FFN 11520");
  EXPECT_EQ(describe(blocks[1]), "no attention, no FFN");
  EXPECT_EQ(describe(blocks[2]), "64 KV heads, 16 experts of 256, 4 per token");
}

// 28672 = 2/3 5.25 8192; 2/3 1.3 8192 is 7099.7, and 7168 is the next multiple of 256.
TEST(BlockConfigs, ReadNemotronNASsDialect) {
  const auto blocks = read(R"({"block_configs": [
    {"attention": {"n_heads_in_group": 8, "no_op": false, "num_sink_tokens": null, "replace_with_linear": false,
                   "sparsify": null, "unshifted_sink": false, "use_prefill_window_in_sink_attention": false,
                   "window_length": null},
     "ffn": {"ffn_mult": 5.25, "no_op": false, "replace_with_linear": false, "sparsify": null}},
    {"attention": {"n_heads_in_group": null, "no_op": true}, "ffn": {"ffn_mult": 1.3, "no_op": false}},
    {"attention": {"n_heads_in_group": 16}, "ffn": {"ffn_mult": null, "no_op": true}}]})");
  EXPECT_THAT(blocks, ElementsAre(block(8, 28672), block(0, 7168), block(4, 0)));
}

TEST(BlockConfigs, ReadTransformersDialect) {
  const auto blocks = read(R"({"per_layer_config": {
    "00": {"num_key_value_heads": 2, "skip": ["mlp"]}, "2": {"intermediate_size": 96, "skip": ["attention"]}}})");
  EXPECT_THAT(blocks, ElementsAre(block(2, 0), block(8, 28672), block(0, 96)));
  EXPECT_THAT(read(R"({"per_layer_config": {}})"), ElementsAre(block(8, 28672), block(8, 28672), block(8, 28672)));

  LayersByDefault experts = model();
  const MoESubblock mixture{.num_local_experts = 8, .num_experts_per_tok = 2, .expert_intermediate_dim = 64};
  experts.blocks[1].ffn = experts.blocks[2].ffn = mixture;
  const auto changed = read(
      R"({"per_layer_config": {"1": {"num_experts": 4, "moe_intermediate_size": 32},
                               "2": {"num_experts": 0, "intermediate_size": 128}}})",
      experts);
  EXPECT_EQ(
      std::get<MoESubblock>(changed[1].ffn),
      (MoESubblock{.num_local_experts = 4, .num_experts_per_tok = 2, .expert_intermediate_dim = 32}));
  EXPECT_EQ(changed[2], block(8, 128));
}

TEST(BlockConfigs, HaveOneWrittenForm) {
  std::vector<BlockConfig> blocks{block(4, 64), block(0, 96), block(8, 0)};
  blocks[0].ffn = MoESubblock{.num_local_experts = 4, .num_experts_per_tok = 2, .expert_intermediate_dim = 32};
  Node config = Node::make_table();
  config.set("block_configs", write_block_configs(blocks));
  const std::string text = to_json(config);
  EXPECT_EQ(read(text), blocks);
  Node again = Node::make_table();
  again.set("block_configs", write_block_configs(read(text)));
  EXPECT_EQ(to_json(again), text);
  EXPECT_EQ(
      to_json(config.at("block_configs").at(1)),
      R"({"attention":{"no_op":true,"replace_with_linear":false,"sparsify":null,"weights_precision":"bf16",)"
      R"("num_key_value_heads":null,"llama4":null,"mamba":null},)"
      R"("ffn":{"no_op":false,"replace_with_linear":false,"sparsify":null,"weights_precision":"bf16","moe":null,)"
      R"("intermediate_size":96},"parallel_blocks":null})");
}

// By the key of Nemotron-NAS, in both formats.
TEST(BlockConfigs, MayGiveALayerAWindowOfItsOwn) {
  for (const char* heads : {R"("num_key_value_heads": 8)", R"("n_heads_in_group": 8)"}) {
    const auto blocks = read(second(fmt::format(R"({{{}, "window_length": 4096}})", heads), kWidth));
    EXPECT_EQ(std::get<AttentionSubblock>(blocks[1].attention), (AttentionSubblock{8, 4096})) << heads;
    EXPECT_EQ(describe(blocks[1]), "8 KV heads, window 4096, FFN 64");
    EXPECT_EQ(blocks[0], block(8, 28672));
    Node config = Node::make_table();
    config.set("block_configs", write_block_configs(blocks));
    EXPECT_EQ(config.at("block_configs").at(0).at("attention").find("window_length"), nullptr);
    EXPECT_EQ(config.at("block_configs").at(1).at("attention").at("window_length").as_int(), 4096);
    EXPECT_EQ(read(to_json(config)), blocks);
  }
  EXPECT_EQ(read(second(R"({"num_key_value_heads": 8, "window_length": null})", kWidth))[1], block(8, 64));
  EXPECT_EQ(read(second(R"({"no_op": true, "window_length": 16})", kWidth))[1], block(0, 64));
}

// puzzletron accepts these, although one of the values is unused.
TEST(BlockConfigs, IgnoreSizesOfNoOpSubblocks) {
  EXPECT_EQ(
      read(second(R"({"no_op": true, "num_key_value_heads": 8, "sparsify": ["q_proj"]})", kWidth))[1], block(0, 64));
  EXPECT_EQ(read(second(kHeads, R"({"no_op": true, "intermediate_size": 64})"))[1], block(8, 0));
  EXPECT_TRUE(read(second(
      kHeads,
      R"({"intermediate_size": 64,
          "moe": {"num_local_experts": 4, "num_experts_per_tok": 2, "expert_intermediate_dim": 32}})"))[1]
                  .is_moe());
  EXPECT_EQ(read(second(kHeads, kWidth, R"(, "parallel_blocks": [])"))[1], block(8, 64));
}

// With the sizes that puzzletron requires, or with null, as in Nemotron-NAS.
TEST(BlockConfigs, MayReplaceASubblockByALinearLayer) {
  BlockConfig attention = block(8, 64), ffn = block(8, 64);
  attention.attention = LinearSubblock{};
  ffn.ffn = LinearSubblock{};
  for (const char* linear :
       {R"({"num_key_value_heads": 8, "replace_with_linear": true})",
        R"({"replace_with_linear": true})",
        R"({"n_heads_in_group": null, "replace_with_linear": true})"}) {
    EXPECT_EQ(read(second(linear, kWidth))[1], attention) << linear;
  }
  for (const char* linear :
       {R"({"intermediate_size": 64, "replace_with_linear": true})",
        R"({"moe": {"num_local_experts": 4}, "replace_with_linear": true})",
        R"({"ffn_mult": null, "replace_with_linear": true})"}) {
    EXPECT_EQ(read(second(kHeads, linear))[1], ffn) << linear;
  }
  ffn.attention = LinearSubblock{};
  Node config = Node::make_table();
  config.set("block_configs", write_block_configs({attention, ffn, block(8, 0)}));
  EXPECT_THAT(read(to_json(config)), ElementsAre(attention, ffn, block(8, 0)));
  EXPECT_EQ(describe(attention), "a linear layer for attention, FFN 64");
  EXPECT_EQ(describe(ffn), "a linear layer for attention, a linear layer for FFN");
}

TEST(BlockConfigs, ErrorsNameFileKeyAndLayer) {
  const std::string file = "m/config.json: ";
  struct Case {
    std::string text, message;
  };
  const std::vector<Case> cases{
      {R"({"block_configs": 3})", "block_configs: expected a list, found integer 3"},
      {R"({"block_configs": []})", "block_configs: expected one per layer (3, num_hidden_layers), found 0"},
      {R"({"block_configs": [], "per_layer_config": {}})", "per_layer_config: block_configs defines the same"},
      {second("{}", kWidth), "'block_configs[1].attention.num_key_value_heads' is missing"},
      {second(kHeads, "{}"), "'block_configs[1].ffn.intermediate_size' is missing"},
      {second("null", kWidth), "block_configs[1].attention: expected a table, found nothing; set \"no_op\": true"},
      {second(R"({"num_key_value_heads": "8"})", kWidth),
       "block_configs[1].attention.num_key_value_heads: expected an integer, found string \"8\""},
      {second(R"({"num_key_value_heads": 0})", kWidth),
       "block_configs[1].attention.num_key_value_heads: expected a positive number, found 0"},
      {second(R"({"num_key_value_heads": 6})", kWidth),
       "block_configs[1].attention.num_key_value_heads: expected a divisor of num_attention_heads (64), found 6"},
      {second(kHeads, R"({"intermediate_size": -64})"),
       "block_configs[1].ffn.intermediate_size: expected a positive number, found -64"},
      {second(kHeads, R"({"intermediate_sise": 64})"), "'block_configs[1].ffn.intermediate_size' is missing"},
      {second(kHeads, R"({"intermediate_size": 64, "hidden_act": "silu"})"),
       "block_configs[1].ffn: 'hidden_act' is not known; known: no_op,"},
      {second(kHeads, kWidth, R"(, "attn": {})"), "block_configs[1]: 'attn' is not known"},
      {second(R"({"no_op": true, "replace_with_linear": true})", kWidth),
       "block_configs[1].attention.replace_with_linear: expected false, found true; no_op removes the sub-block"},
      {second(kHeads, R"({"no_op": true, "replace_with_linear": true})"),
       "block_configs[1].ffn.replace_with_linear: expected false"},
      {second(R"({"replace_with_linear": true, "mamba": {"state_dim": 16}})", kWidth),
       "block_configs[1].attention.mamba: expected null"},
      {second(R"({"num_key_value_heads": 8, "no_op": 1})", kWidth), "attention.no_op: expected true or false"},
      {second(R"({"no_op": true, "mamba": {"state_dim": 16}})", kWidth),
       "block_configs[1].attention.mamba: expected null, found a table; Mamba is not supported"},
      {second(R"({"num_key_value_heads": 8, "llama4": {}})", kWidth), "attention.llama4: expected null"},
      {second(R"({"num_key_value_heads": 8, "sparsify": ["q_proj"]})", kWidth), "attention.sparsify: expected null"},
      {second(kHeads, R"({"intermediate_size": 64, "weights_precision": "nvfp4"})"),
       "ffn.weights_precision: expected \"bf16\", found \"nvfp4\""},
      {second(kHeads, kWidth, R"(, "parallel_blocks": [{}])"), "block_configs[1].parallel_blocks: expected null"},
      {second(kHeads, R"({"moe": {"num_local_experts": 4, "num_experts_per_tok": 5, "expert_intermediate_dim": 8}})"),
       "block_configs[1].ffn.moe.num_experts_per_tok: expected at most num_local_experts (4), found 5"},
      {second(kHeads, R"({"moe": {"num_local_experts": 0, "num_experts_per_tok": 1, "expert_intermediate_dim": 8}})"),
       "block_configs[1].ffn.moe.num_local_experts: expected a positive number, found 0"},
      {second(kHeads, R"({"moe": {"num_experts_per_tok": 1, "expert_intermediate_dim": 8}})"),
       "'block_configs[1].ffn.moe.num_local_experts' is missing"},
      {second(R"({"n_heads_in_group": 6})", kWidth),
       "block_configs[1].attention.n_heads_in_group: expected a divisor of num_attention_heads (64), found 6"},
      {second(R"({"n_heads_in_group": null})", kWidth), "attention.n_heads_in_group: expected an integer, found null"},
      {second(R"({"n_heads_in_group": 8, "num_key_value_heads": 8})", kWidth),
       "block_configs[1].attention: n_heads_in"},
      {second(R"({"n_heads_in_group": 8, "window_length": 0})", kWidth),
       "block_configs[1].attention.window_length: expected 1 or more tokens, found 0; null stands for the model's"},
      {second(R"({"n_heads_in_group": 8, "num_sink_tokens": 4})", kWidth),
       "attention.num_sink_tokens: expected null, found integer 4; sink tokens are not supported"},
      {second(kHeads, R"({"ffn_mult": 0})"), "block_configs[1].ffn.ffn_mult: expected a positive factor"},
      {second(kHeads, R"({"ffn_mult": 1e300})"), "block_configs[1].ffn.ffn_mult: expected a positive factor"},
      {R"({"per_layer_config": {"3": {}}})",
       "per_layer_config: expected each layer from 0 to 2 at most once, found \"3\""},
      {R"({"per_layer_config": {"1": {}, "01": {}}})", "at most once, found \"01\""},
      {R"({"per_layer_config": {"-1": {}}})", "found \"-1\""},
      {R"({"per_layer_config": {"1": {"num_key_value_heads": 5}}})",
       "per_layer_config.1: attention.num_key_value_heads: expected a divisor of num_attention_heads (64), found 5"},
      {R"({"per_layer_config": {"1": {"skip": ["attn"]}}})", "per_layer_config.1.skip[0]: expected \"attention\" or"},
      {R"({"per_layer_config": {"1": {"skip": ["attention"], "num_key_value_heads": 4}}})",
       "per_layer_config.1.num_key_value_heads: the layer skips attention"},
      {R"({"per_layer_config": {"1": {"num_experts": 4}}})",
       "per_layer_config.1.num_experts: the layer has no experts"},
      {R"({"per_layer_config": {"1": {"intermediate_sise": 4}}})", "did you mean 'intermediate_size'"}};
  for (const Case& one : cases) {
    const std::string found = problem(one.text);
    EXPECT_THAT(found, HasSubstr(one.message)) << one.text;
    EXPECT_TRUE(found.starts_with(file)) << found;
  }
}

}  // namespace
}  // namespace lehr::descriptor
