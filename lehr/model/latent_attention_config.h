// The fields of config.json for multi-head latent attention.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lehr/config/node.h"
#include "lehr/model/layer_sizes.h"
#include "lehr/nn/rotary.h"

namespace lehr::descriptor {
struct LatentAttentionForm;
}
namespace lehr::nn {
struct MultiHeadLatentAttentionParameters;
}

namespace lehr::model {

/// The sizes of nn::MultiHeadLatentAttention, with Hugging Face's names.
struct LatentAttentionConfig {
  std::optional<int64_t> q_lora_rank = {};  ///< Queries have one projection if unset.
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  bool rope_interleave = true;  ///< Neighbours are rotated together, not the halves of a head.
  bool attention_bias = false;
  double mscale_all_dim = 0;  ///< Of RoPE scaling of any type, not only YaRN: if not 0, the scale of the scores is
                              ///< multiplied by the square of nn::yarn_mscale.

  /// Width of a query or key head.
  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  /// Elements that the cache keeps per token.
  int64_t cached_per_token() const { return kv_lora_rank + qk_rope_head_dim; }
  /// Factor on the scores of a model with this RoPE scaling; nullopt for 1 / sqrt(qk_head_dim()).
  std::optional<double> scale(const nn::RopeScaling& scaling) const;
  /// The attention of a layer with these sizes.
  nn::MultiHeadLatentAttentionParameters parameters(
      const LayerSizes& sizes, std::optional<double> attention_scale) const;
  /// The sizes that decide its number of parameters and its memory.
  descriptor::LatentAttentionForm form() const;

  static LatentAttentionConfig from_hf(const Node& config);
  void to_hf(Node& config) const;
  /// Throws a usage error that names the field, prefixed with `where`, for a size that is not positive or too large.
  void check(const std::string& where) const;
};

}  // namespace lehr::model
