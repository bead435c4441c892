// Common parts of the tests of heterogeneous models: shapes written out layer by layer, and their config.json.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "lehr/base/json.h"
#include "lehr/model/deepseek_v3/family.h"
#include "lehr/model/gemma3/family.h"
#include "lehr/model/glm4_moe/family.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/llama3/family.h"
#include "lehr/model/mistral/family.h"
#include "lehr/model/mixtral/family.h"
#include "lehr/model/olmo2/family.h"
#include "lehr/model/olmo3/family.h"
#include "lehr/model/qwen2/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/model/qwen3_next/family.h"
#include "lehr/model/smollm3/family.h"

namespace lehr::model::test {

/// In place of KV heads or a width: one linear layer for the sub-block.
inline constexpr int64_t kLinear = -1;

/// One layer. 0 KV heads: no attention. Width 0: no feed-forward. With experts, the width is that of one.
struct LayerShape {
  int64_t kv_heads, width, experts = 0, top_k = 0;
};

inline constexpr int64_t kHidden = 24, kHeads = 8, kHeadDim = 6, kVocabulary = 29;
inline constexpr double kEps = 1e-6, kRopeBase = 100;
/// Of families in which some layers have a window, and of those in which such layers have rotary positions of their
/// own.
inline constexpr int64_t kWindow = 3;
inline constexpr double kSlidingRopeBase = 7;
/// Of gpt-oss's gate; it cuts many values.
inline constexpr double kSwiGLULimit = 0.7;

/// Whether a layer has the window kWindow.
inline bool slides(const std::string& model_type, int64_t layer) {
  return model_type == "mistral" || model_type == "mixtral" || (model_type == "qwen2" && layer >= 2) ||
         (model_type == "smollm3" && layer % 2 == 1) ||
         ((model_type == "olmo3" || model_type == "gemma3_text" || model_type == "gpt_oss") && layer % 2 == 0);
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

/// Linear layers for one sub-block and for both, beside ordinary ones and none.
inline const std::vector<LayerShape> kWithLinear{
    {kLinear, 16}, {4, 32}, {2, kLinear}, {kLinear, kLinear}, {0, kLinear}};
inline const std::vector<LayerShape> kMixturesWithLinear{{4, 8, 6, 2}, {kLinear, 12, 4, 3}, {2, kLinear}, {8, 8, 6, 3}};

inline std::string block_json(const LayerShape& layer) {
  const auto without_size = [](int64_t size) {
    return size == kLinear ? R"("replace_with_linear": true)" : R"("no_op": true)";
  };
  const std::string attention =
      layer.kv_heads > 0 ? fmt::format(R"("num_key_value_heads": {})", layer.kv_heads) : without_size(layer.kv_heads);
  std::string ffn = without_size(layer.width);
  if (layer.experts > 0) {
    ffn = fmt::format(
        R"("moe": {{"num_local_experts": {}, "num_experts_per_tok": {}, "expert_intermediate_dim": {}}})",
        layer.experts,
        layer.top_k,
        layer.width);
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
  std::string types, rotary;
  for (int64_t layer = 0; layer < layers; ++layer) {
    types += fmt::format(R"({}"{}_attention")", layer > 0 ? ", " : "", slides(model_type, layer) ? "sliding" : "full");
    rotary += fmt::format("{}{}", layer > 0 ? ", " : "", rotates(model_type, layer) ? 1 : 0);
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
  return model_type == "mistral" ? window
         : model_type == "qwen2" ? window + R"("use_sliding_window": true, "max_window_layers": 2, )"
         : model_type == "smollm3"
             ? window + fmt::format(R"("use_sliding_window": true, "no_rope_layers": [{}], )", rotary)
         : model_type == "olmo3"       ? window + ropes
         : model_type == "gemma3_text" ? window + ropes + R"("query_pre_attn_scalar": 5, )"
                                       : "";
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
  "intermediate_size": 32, "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": 4,
  "head_dim": {}, "max_position_embeddings": 128, "rms_norm_eps": {}, "rope_theta": {}, "tie_word_embeddings": {},
  {}"block_configs": [{}]}})",
      model_type,
      vocabulary > 0 ? vocabulary : kVocabulary,
      kHidden,
      layers.size(),
      kHeads,
      kHeadDim,
      kEps,
      kRopeBase,
      tied,
      own_keys(model_type, static_cast<int64_t>(layers.size())),
      blocks);
}

inline descriptor::ModelFamilies all_families() {
  descriptor::ModelFamilies families;
  families.add(qwen3_dense_family());
  families.add(qwen3_moe_family());
  families.add(llama3_family());
  families.add(olmo2_family());
  families.add(qwen2_family());
  families.add(mistral_family());
  families.add(smollm3_family());
  families.add(olmo3_family());
  families.add(gemma3_family());
  families.add(mixtral_family());
  families.add(deepseek_v3_family());
  families.add(glm4_moe_family());
  families.add(gpt_oss_family());
  families.add(qwen3_next_family());
  return families;
}

inline descriptor::ModelFamily family_of(const std::string& model_type) {
  return model_type == "qwen3"         ? qwen3_dense_family()
         : model_type == "llama"       ? llama3_family()
         : model_type == "olmo2"       ? olmo2_family()
         : model_type == "qwen2"       ? qwen2_family()
         : model_type == "mistral"     ? mistral_family()
         : model_type == "smollm3"     ? smollm3_family()
         : model_type == "olmo3"       ? olmo3_family()
         : model_type == "gemma3_text" ? gemma3_family()
         : model_type == "mixtral"     ? mixtral_family()
         : model_type == "gpt_oss"     ? gpt_oss_family()
                                       : qwen3_moe_family();
}

inline std::unique_ptr<descriptor::ModelArgs> args_of(
    const std::string& model_type, const std::vector<LayerShape>& layers) {
  auto args = family_of(model_type).from_hf_config(parse_json(config_json(model_type, layers), "config.json"));
  args->check("config.json: ");
  return args;
}

}  // namespace lehr::model::test
