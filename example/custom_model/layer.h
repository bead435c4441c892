// The architecture: one layer of the parallel decoder.
#pragma once

#include "lehr/nn/attention.h"
#include "lehr/nn/swiglu.h"

namespace parallel_decoder {

using namespace lehr;

/// Sizes of one layer. The backbone and the heads read hidden_size, head_dim, rms_norm_eps and initializer_range.
struct LayerParameters {
  int64_t hidden_size;          ///< Width of the residual stream.
  int64_t intermediate_size;    ///< Inner width of the SwiGLU.
  int64_t num_attention_heads;  ///< Query heads.
  int64_t num_key_value_heads;  ///< Key and value heads; divides num_attention_heads.
  int64_t head_dim;             ///< Width of a head.
  double rms_norm_eps;          ///< Epsilon of the norms.
  double initializer_range;     ///< Standard deviation of initial weights.
};

/// Parallel attention and SwiGLU after one norm, as in GPT-J and PaLM (https://arxiv.org/abs/2204.02311):
/// x + attention(norm(x)) + mlp(norm(x)).
class ParallelLayerImpl : public nn::Module {
 public:
  explicit ParallelLayerImpl(const LayerParameters& params) {
    const auto init = nn::Init::normal(params.initializer_range);
    self_attn = register_module(
        "self_attn",
        nn::GroupedQueryAttention(nn::GroupedQueryAttentionParameters{
            .hidden_size = params.hidden_size,
            .num_attention_heads = params.num_attention_heads,
            .num_key_value_heads = params.num_key_value_heads,
            .head_dim = params.head_dim,
            .init = init,
        }));
    mlp = register_module("mlp", nn::SwiGLU(params.hidden_size, params.intermediate_size, init));
    input_layernorm = register_module("input_layernorm", nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  }

  /// Maps hidden states (B, T, H) to hidden states (B, T, H).
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const nn::PositionEmbeddings& position_embeddings,
      const nn::AttentionMask& attention_mask = {},
      nn::KeyValueCache* cache = nullptr) {
    const at::Tensor normed = input_layernorm(hidden_states);
    return hidden_states + self_attn(normed, position_embeddings, attention_mask, cache) + mlp(normed);
  }

  nn::GroupedQueryAttention self_attn{nullptr};
  nn::SwiGLU mlp{nullptr};
  nn::RMSNorm input_layernorm{nullptr};
};
LEHR_MODULE(ParallelLayer);

}  // namespace parallel_decoder
