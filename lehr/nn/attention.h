// Grouped-query attention (Ainslie et al., https://arxiv.org/abs/2305.13245).
#pragma once

#include <optional>

#include "lehr/nn/kv_cache.h"
#include "lehr/nn/linear.h"
#include "lehr/nn/rms_norm.h"
#include "lehr/nn/rotary.h"
#include "lehr/ops/attention.h"

namespace lehr::nn {

using ops::AttentionMask;

struct GroupedQueryAttentionParameters {
  int64_t hidden_size;
  int64_t num_attention_heads;
  int64_t num_key_value_heads;
  int64_t head_dim;
  std::optional<double> qk_norm_eps = {};  ///< RMSNorm on each query and key head with this epsilon; none without.
  bool attention_bias = false;
  Init init = Init::normal(0.02);
};

/// Causal self-attention with grouped key/value heads, rotary positions and, where the model has it, QK-norm.
class GroupedQueryAttentionImpl : public Module {
 public:
  /// Throws a usage error if num_attention_heads is not a multiple of num_key_value_heads.
  explicit GroupedQueryAttentionImpl(const GroupedQueryAttentionParameters& params);

  /// Maps (B, T, C) to (B, T, C). With a cache, the T tokens follow those in the cache.
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const PositionEmbeddings& position_embeddings,
      const AttentionMask& mask = {},
      KeyValueCache* cache = nullptr);

  Linear q_proj{nullptr};
  Linear k_proj{nullptr};
  Linear v_proj{nullptr};
  Linear o_proj{nullptr};
  RMSNorm q_norm{nullptr};  // empty without QK-norm
  RMSNorm k_norm{nullptr};

 private:
  int64_t num_attention_heads_;
  int64_t num_key_value_heads_;
  int64_t head_dim_;
};
TORCH_MODULE(GroupedQueryAttention);

}  // namespace lehr::nn
