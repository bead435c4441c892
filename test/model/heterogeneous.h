// Common parts of the tests of heterogeneous models: shapes written out layer by layer, and their config.json.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "lehr/config/json.h"
#include "test/model/families.h"

namespace lehr::model::test {

/// In place of KV heads or a width: one linear layer for the sub-block.
inline constexpr int64_t kLinear = -1;

/// One layer. 0 KV heads: no attention. Width 0: no feed-forward. With experts, the width is that of one, and `shared`
/// that of a shared expert. `window` is one of its own; 0: that of the family, if it has one.
struct LayerShape {
  int64_t kv_heads, width, experts = 0, top_k = 0, shared = 0, window = 0;
};

inline constexpr int64_t kHidden = 24, kHeads = 8, kHeadDim = 6, kVocabulary = 29;
inline constexpr double kEps = 1e-6, kRopeBase = 100;
/// Of families in which some layers have a window, and of those in which such layers have rotary positions of their
/// own.
inline constexpr int64_t kWindow = 3;
inline constexpr double kSlidingRopeBase = 7;
/// Of gpt-oss's gate; it cuts many values.
inline constexpr double kSwiGLULimit = 0.7;
/// Of latent attention, beside kHeadDim rotated elements: ranks, elements without positions, and those of a value.
inline constexpr int64_t kQueryLatent = 7, kLatent = 10, kPlainDim = 4, kValueDim = 5;
/// Of gated DeltaNet.
inline constexpr int64_t kDeltaKeyHeads = 2, kDeltaHeads = 4, kDeltaKeyDim = 4, kDeltaValueDim = 6;
/// Of GLM-4.5: of the six elements of a head, four are rotated, as in MiniMax M2.
inline constexpr double kRoutedScalingFactor = 1.5, kPartialRotaryFactor = 0.7;

/// Whether a layer has the window kWindow.
inline bool slides(const std::string& model_type, int64_t layer) {
  return model_type == "mistral" || model_type == "mixtral" || (model_type == "qwen2" && layer >= 2) ||
         (model_type == "qwen3" && layer >= 5) || (model_type == "smollm3" && layer % 2 == 1) ||
         ((model_type == "olmo3" || model_type == "gemma3_text" || model_type == "gpt_oss") && layer % 2 == 0);
}

/// The window of a layer; 0: none.
inline int64_t window_of(const std::string& model_type, int64_t layer, const LayerShape& shape) {
  return shape.window > 0 ? shape.window : slides(model_type, layer) ? kWindow : 0;
}

/// Whether config.json has attention_bias. (Without rotary positions, as in SmolLM3, biases of keys have no gradient.)
inline bool has_attention_bias(const std::string& model_type) {
  return model_type == "llama" || model_type == "olmo3" || model_type == "gemma3_text";
}

/// Whether a layer has gated DeltaNet for its attention.
inline bool is_delta(const std::string& model_type, int64_t layer) {
  return model_type == "qwen3_next" && layer % 2 == 0;
}

/// Whether the attention of a layer has KV heads, of which there may be fewer.
inline bool has_kv_heads(const std::string& model_type, int64_t layer) {
  return model_type != "deepseek_v3" && !is_delta(model_type, layer);
}

/// Whether a layer rotates queries and keys.
inline bool rotates(const std::string& model_type, int64_t layer) {
  return model_type != "smollm3" || layer % 2 == 0;
}

/// Different KV heads and widths, two layers without attention, one without a feed-forward block.
inline const std::vector<LayerShape> kMixed{{4, 32}, {2, 16}, {0, 40}, {8, 0}, {0, 16}, {2, 8}};
/// The first layer without attention, and one that is nothing at all.
inline const std::vector<LayerShape> kWithHoles{{0, 16}, {4, 32}, {0, 0}, {2, 24}};
/// Mixtures of different sizes, an ordinary feed-forward block, none at all.
inline const std::vector<LayerShape> kMixtures{{4, 8, 6, 2}, {2, 32}, {0, 12, 4, 3}, {8, 0}, {4, 8, 6, 3}};

/// The same without an ordinary feed-forward block, which gpt-oss does not have.
inline const std::vector<LayerShape> kOnlyMixtures{{4, 8, 6, 2}, {2, 16, 4, 2}, {0, 12, 4, 3}, {8, 0}, {4, 8, 6, 3}};

/// Mixtures with shared experts, whose widths are no multiples of those of the others.
inline const std::vector<LayerShape> kSharedMixtures{
    {4, 8, 6, 2, 16}, {2, 32}, {0, 12, 4, 3, 10}, {8, 0}, {4, 8, 6, 3, 6}};

/// The same with latent attention, which has one latent for all heads.
inline const std::vector<LayerShape> kLatentMixtures{
    {1, 8, 6, 2, 16}, {1, 32}, {0, 12, 4, 3, 10}, {1, 0}, {1, 8, 6, 3, 6}};

/// The same with gated DeltaNet in every other layer.
inline const std::vector<LayerShape> kDeltaMixtures{
    {1, 8, 6, 2, 16}, {2, 32}, {0, 12, 4, 3, 10}, {4, 0}, {1, 8, 6, 3, 6}, {8, 8, 4, 2, 16}, {1, 16}};

/// Linear layers for one sub-block and for both, beside ordinary ones and none.
inline const std::vector<LayerShape> kWithLinear{
    {kLinear, 16}, {4, 32}, {2, kLinear}, {kLinear, kLinear}, {0, kLinear}};
inline const std::vector<LayerShape> kMixturesWithLinear{{4, 8, 6, 2}, {kLinear, 12, 4, 3}, {2, kLinear}, {8, 8, 6, 3}};
inline const std::vector<LayerShape> kSharedMixturesWithLinear{
    {4, 8, 6, 2, 16}, {kLinear, 12, 4, 3, 10}, {2, kLinear}, {8, 8, 6, 3, 16}};

/// Windows of their own in some layers, among them layers that have the family's.
inline const std::vector<LayerShape> kWithWindows{
    {4, 32, 0, 0, 0, 2}, {2, 16, 0, 0, 0, 5}, {4, 0}, {8, 32, 0, 0, 0, 2}, {2, 8, 0, 0, 0, 4}};
inline const std::vector<LayerShape> kMixturesWithWindows{
    {4, 8, 6, 2, 0, 2}, {2, 16, 4, 2, 0, 5}, {8, 0}, {4, 8, 6, 3, 0, 4}};

/// Layers of a family, with experts of all kinds if it has them.
inline const std::vector<LayerShape>& layers_of(const std::string& model_type) {
  return model_type == "qwen3_moe" || model_type == "mixtral" || model_type == "minimax_m2" ? kMixtures
         : model_type == "gpt_oss"                                                          ? kOnlyMixtures
         : model_type == "glm4_moe"                                                         ? kSharedMixtures
         : model_type == "deepseek_v3"                                                      ? kLatentMixtures
         : model_type == "qwen3_next"                                                       ? kDeltaMixtures
                                                                                            : kMixed;
}

inline std::string block_json(const LayerShape& layer) {
  const auto without_size = [](int64_t size) {
    return size == kLinear ? R"("replace_with_linear": true)" : R"("no_op": true)";
  };
  const std::string window = layer.window > 0 ? fmt::format(R"(, "window_length": {})", layer.window) : "";
  const std::string attention = layer.kv_heads > 0
                                    ? fmt::format(R"("num_key_value_heads": {}{})", layer.kv_heads, window)
                                    : without_size(layer.kv_heads);
  std::string ffn = without_size(layer.width);
  if (layer.experts > 0) {
    ffn = fmt::format(
        R"("moe": {{"num_local_experts": {}, "num_experts_per_tok": {}, "expert_intermediate_dim": {}{}}})",
        layer.experts,
        layer.top_k,
        layer.width,
        layer.shared > 0 ? fmt::format(R"(, "shared_expert_intermediate_dim": {})", layer.shared) : "");
  } else if (layer.width > 0) {
    ffn = fmt::format(R"("intermediate_size": {})", layer.width);
  }
  return fmt::format(R"({{"attention": {{{}}}, "ffn": {{{}}}}})", attention, ffn);
}

/// The keys of config.json that only some families have.
inline std::string own_keys(const std::string& model_type, int64_t layers) {
  if (model_type == "qwen3_moe") {
    return R"("num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": true, )";
  }
  const std::string routed = fmt::format(
      R"("n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_shared_experts": 2,
  "first_k_dense_replace": 0, "routed_scaling_factor": {}, "n_group": 1, "topk_group": 1, )",
      kRoutedScalingFactor);
  const std::string partial = fmt::format(R"("partial_rotary_factor": {}, )", kPartialRotaryFactor);
  if (model_type == "glm4_moe") {
    return routed + partial + R"("use_qk_norm": true, "attention_bias": true, )";
  }
  if (model_type == "minimax_m2") {
    return R"("rotary_dim": 4, "num_local_experts": 6, "num_experts_per_tok": 2, )";
  }
  if (model_type == "deepseek_v3") {
    return routed + fmt::format(
                        R"("q_lora_rank": {}, "kv_lora_rank": {}, "qk_nope_head_dim": {}, "qk_rope_head_dim": {},
  "v_head_dim": {}, )",
                        kQueryLatent,
                        kLatent,
                        kPlainDim,
                        kHeadDim,
                        kValueDim);
  }
  std::string types, rotary;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const char* type = is_delta(model_type, layer) ? "linear" : slides(model_type, layer) ? "sliding" : "full";
    types += fmt::format(R"({}"{}_attention")", layer > 0 ? ", " : "", type);
    rotary += fmt::format("{}{}", layer > 0 ? ", " : "", rotates(model_type, layer) ? 1 : 0);
  }
  if (model_type == "qwen3_next") {
    return partial + fmt::format(
                         R"("layer_types": [{}], "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
  "shared_expert_intermediate_size": 16, "linear_num_key_heads": {}, "linear_num_value_heads": {},
  "linear_key_head_dim": {}, "linear_value_head_dim": {}, )",
                         types,
                         kDeltaKeyHeads,
                         kDeltaHeads,
                         kDeltaKeyDim,
                         kDeltaValueDim);
  }
  const std::string window = fmt::format(R"("sliding_window": {}, )", kWindow);
  if (model_type == "mixtral") {
    return window + R"("num_local_experts": 6, "num_experts_per_tok": 2, )";
  }
  if (model_type == "gpt_oss") {
    return window + fmt::format(
                        R"("num_local_experts": 6, "num_experts_per_tok": 2, "swiglu_limit": {},
  "rope_parameters": {{"rope_type": "default", "rope_theta": {}}}, )",
                        kSwiGLULimit,
                        kRopeBase);
  }
  const std::string ropes = fmt::format(
      R"("layer_types": [{}], "rope_parameters": {{"full_attention": {{"rope_type": "default", "rope_theta": {}}},
  "sliding_attention": {{"rope_type": "default", "rope_theta": {}}}}}, )",
      types,
      kRopeBase,
      kSlidingRopeBase);
  const std::string biases = has_attention_bias(model_type) ? R"("attention_bias": true, )" : "";
  return model_type == "mistral" ? window
         : model_type == "qwen2" ? window + R"("use_sliding_window": true, "max_window_layers": 2, )"
         : model_type == "qwen3" ? window + R"("use_sliding_window": true, "max_window_layers": 5, )"
         : model_type == "smollm3"
             ? window + fmt::format(R"("use_sliding_window": true, "no_rope_layers": [{}], )", rotary)
         : model_type == "olmo3"       ? window + ropes + biases
         : model_type == "gemma3_text" ? window + ropes + biases + R"("query_pre_attn_scalar": 5, )"
                                       : biases;
}

/// num_key_value_heads of config.json, which block configs may change.
inline int64_t kv_heads_of(const std::string& model_type) {
  return model_type == "deepseek_v3" ? kHeads : 4;
}

/// config.json of a model of that model_type with these layers; `vocabulary` 0 is kVocabulary.
inline std::string config_json(
    const std::string& model_type, const std::vector<LayerShape>& layers, int64_t vocabulary = 0, bool tied = false) {
  std::string blocks;
  for (const LayerShape& layer : layers) {
    blocks += (blocks.empty() ? "" : ", ") + block_json(layer);
  }
  return fmt::format(
      R"({{"model_type": "{}", "architectures": ["XForCausalLM"], "vocab_size": {}, "hidden_size": {},
  "intermediate_size": 32, "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {},
  "head_dim": {}, "max_position_embeddings": 128, "rms_norm_eps": {}, "rope_theta": {}, "tie_word_embeddings": {},
  {}"block_configs": [{}]}})",
      model_type,
      vocabulary > 0 ? vocabulary : kVocabulary,
      kHidden,
      layers.size(),
      kHeads,
      kv_heads_of(model_type),
      kHeadDim,
      kEps,
      kRopeBase,
      tied,
      own_keys(model_type, static_cast<int64_t>(layers.size())),
      blocks);
}

inline descriptor::ModelFamily family_of(const std::string& model_type) {
  return all_families().at(model_type == "llama" ? "llama3" : model_type == "gemma3_text" ? "gemma3" : model_type);
}

inline std::unique_ptr<descriptor::ModelArgs> args_of(
    const std::string& model_type, const std::vector<LayerShape>& layers) {
  auto args = family_of(model_type).from_hf_config(parse_json(config_json(model_type, layers), "config.json"));
  args->check("config.json: ");
  return args;
}

}  // namespace lehr::model::test
