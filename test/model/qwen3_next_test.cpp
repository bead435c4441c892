// Qwen3-Next: its config.json, its layers, its counts; documents and caches of whole models.
#include <gmock/gmock.h>

#include <algorithm>

#include "lehr/config/json.h"
#include "lehr/model/qwen3_next/family.h"
#include "lehr/nn/model.h"
#include "test/model/changed_config.h"
#include "test/model/state_layers.h"

namespace lehr::model {
namespace {

using test::Changes;
using ::testing::HasSubstr;

// As it was published.
constexpr const char* kPublished =
    R"({"architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4,
  "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5120,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
  "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": 512, "norm_topk_prob": true,
  "num_attention_heads": 16, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
  "num_key_value_heads": 2, "output_router_logits": false, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
  "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.57.0.dev0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

// The published file with other values.
std::unique_ptr<descriptor::ModelArgs> with(const Changes& changes) {
  return test::changed(qwen3_next_family(), parse_json(kPublished, "config.json"), changes);
}

std::string problem(const Changes& changes) {
  return test::problem_of_changed(qwen3_next_family(), parse_json(kPublished, "config.json"), changes);
}

TEST(Qwen3Next, ReadsThePublishedFile) {
  const auto own = qwen3_next_family().from_flavor("80B-A3B");
  EXPECT_EQ(to_json(with({})->to_hf_config("bfloat16")), to_json(own->to_hf_config("bfloat16")));
  EXPECT_EQ(
      to_json(with({{"full_attention_interval", "absent"},
                    {"linear_conv_kernel_dim", "absent"},
                    {"linear_key_head_dim", "absent"},
                    {"linear_value_head_dim", "absent"},
                    {"linear_num_key_heads", "absent"},
                    {"linear_num_value_heads", "absent"},
                    {"norm_topk_prob", "absent"},
                    {"decoder_sparse_step", "absent"},
                    {"mlp_only_layers", "absent"},
                    {"partial_rotary_factor", "absent"},
                    {"rms_norm_eps", "absent"}})
                  ->to_hf_config("bfloat16")),
      to_json(own->to_hf_config("bfloat16")))
      << "absent keys have the values of transformers' class";
}

TEST(Qwen3Next, RefusesWhatIsNotComputed) {
  const std::string block = R"([{"attention": {"replace_with_linear": true}, "ffn": {"intermediate_size": 8}}])";
  const std::vector<std::tuple<std::string, std::string, std::string>> cases{
      {"num_experts", "absent", "'num_experts' is missing"},
      {"shared_expert_intermediate_size", "absent", "'shared_expert_intermediate_size' is missing"},
      {"shared_expert_intermediate_size", "0", "shared_expert_intermediate_size: expected a positive number, found 0"},
      {"linear_num_value_heads", "24", "linear_num_value_heads: expected a multiple of linear_num_key_heads (16)"},
      {"linear_num_key_heads", "0", "linear_num_key_heads: expected a positive number, found 0"},
      {"linear_key_head_dim", "-1", "linear_key_head_dim: expected a positive number, found -1"},
      {"linear_conv_kernel_dim", "17", "linear_conv_kernel_dim: expected at most 16, found 17"},
      {"full_attention_interval", "0", "full_attention_interval: expected a positive number, found 0"},
      {"layer_types", R"(["full_attention"])", "layer_types: expected one per layer (48, num_hidden_layers), found 1"},
      {"partial_rotary_factor", "0.001", "partial_rotary_factor: expected a part of head_dim (256)"},
      {"attention_bias", "true", "attention_bias: expected false, found true"},
      {"attention_dropout", "0.1", "attention_dropout: expected 0"}};
  for (const auto& [key, value, message] : cases) {
    EXPECT_THAT(problem({{key, value}}), HasSubstr(message));
  }
  EXPECT_THAT(
      problem({{"num_hidden_layers", "1"}, {"layer_types", R"(["sliding_attention"])"}}),
      HasSubstr("layer_types[0]: expected linear_attention or full_attention, found sliding_attention"));
  EXPECT_THAT(
      problem({{"num_hidden_layers", "1"}, {"block_configs", block}}),
      HasSubstr("block_configs[0]: models of type qwen3_next do not support replace_with_linear"));
}

TEST(Qwen3Next, HasLinearAttentionInThreeOfFourLayers) {
  const auto args = qwen3_next_family().from_flavor("debugmodel");
  const auto names = args->state_map(descriptor::ExpertLayout::per_expert).input_names();
  const auto has = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), "model.layers." + name) != names.end();
  };
  for (int64_t layer = 0; layer < 8; ++layer) {
    const std::string own = std::to_string(layer);
    EXPECT_EQ(has(own + ".linear_attn.conv1d.weight"), layer % 4 != 3);
    EXPECT_EQ(has(own + ".linear_attn.A_log"), layer % 4 != 3);
    EXPECT_EQ(has(own + ".self_attn.q_norm.weight"), layer % 4 == 3);
    EXPECT_TRUE(has(own + ".mlp.shared_expert_gate.weight") && has(own + ".mlp.shared_expert.up_proj.weight"));
  }
}

// Two layers have keys and values. The six others read a state of 16 x 16 numbers twice per token and value head, and
// write it, in forward; twice as much in backward.
TEST(Qwen3Next, CountsTheWorkOfStates) {
  const auto args = qwen3_next_family().from_flavor("debugmodel");
  const auto short_rows = args->get_nparams_and_flops(128), long_rows = args->get_nparams_and_flops(256);
  EXPECT_EQ(short_rows.attention_flops_per_pair, 2 * 6 * 8 * (32 + 32));
  EXPECT_EQ(short_rows.kv_cache_per_token, (std::vector<int64_t>{0, 0, 0, 2 * 4 * 32, 0, 0, 0, 2 * 4 * 32}));
  EXPECT_EQ(long_rows.flops_per_token - short_rows.flops_per_token, 128 * short_rows.attention_flops_per_pair);
  const int64_t layers = short_rows.layer_flops_per_token[0] - long_rows.layer_flops_per_token[0];
  EXPECT_EQ(layers, 0) << "linear attention costs the same in longer rows";
  // Projections, convolutions and norms of gated DeltaNet; norms, router, shared expert, and 4 of 32 experts.
  const int64_t delta = 256 * (2 * 64 + 2 * 128 + 16) + (2 * 64 + 128) * 4 + 8 + 8 + 16 + 128 * 256;
  const int64_t rest = 2 * 256 + 32 * 256 + 3 * 128 * 256 + 256 + 4 * 3 * 128 * 256;
  EXPECT_EQ(short_rows.layer_flops_per_token[0], 6 * (delta + rest) + 18 * 8 * 16 * 16);
}

TEST(Qwen3Next, ComputesPackedDocumentsLikeSeparateOnes) {
  test::expect_packed_documents_equal_separate_ones(*test::model_with_states(qwen3_next_family()));
}

TEST(Qwen3Next, DecodesFromItsCachesLikeOneForward) {
  test::expect_decoding_equals_one_forward(*test::model_with_states(qwen3_next_family()));
}

}  // namespace
}  // namespace lehr::model
