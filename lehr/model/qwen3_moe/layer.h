// One Qwen3 MoE decoder layer.
#pragma once

#include "lehr/model/qwen3_moe/params.h"
#include "lehr/nn/attention.h"
#include "lehr/nn/moe.h"
#include "lehr/nn/swiglu.h"

namespace lehr::model {

/// Attention with QK-norm, then a mixture of experts (or one SwiGLU, in layers that the parameters except), each behind
/// a pre-norm and a residual connection (Qwen3 technical report, https://arxiv.org/abs/2505.09388).
class Qwen3MoELayerImpl : public nn::Module {
 public:
  explicit Qwen3MoELayerImpl(const Qwen3MoELayerParameters& params, int64_t layer_index = 0);

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr);

  /// Tokens that each expert got since the last reset, (E) int64; undefined in a layer without experts.
  at::Tensor moe_tokens_per_expert() const { return experts ? experts->moe_tokens_per_expert() : at::Tensor(); }
  void reset_moe_stats();

  // What a no-op leaves out is empty.
  nn::GroupedQueryAttention self_attn{nullptr};
  nn::MoELayer experts{nullptr};  // "mlp" of a layer with experts
  nn::SwiGLU mlp{nullptr};        // "mlp" of one without
  nn::RMSNorm input_layernorm{nullptr};
  nn::RMSNorm post_attention_layernorm{nullptr};
};
LEHR_MODULE(Qwen3MoELayer);

}  // namespace lehr::model
