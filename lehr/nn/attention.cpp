#include "lehr/nn/attention.h"

#include "lehr/base/error.h"
#include "lehr/ops/qk_norm_rotary.h"
#include "lehr/ops/rotary.h"

namespace lehr::nn {

GroupedQueryAttentionImpl::GroupedQueryAttentionImpl(const GroupedQueryAttentionParameters& params)
    : num_attention_heads_(params.num_attention_heads),
      num_key_value_heads_(params.num_key_value_heads),
      head_dim_(params.head_dim) {
  require(
      params.num_key_value_heads > 0 && params.num_attention_heads % params.num_key_value_heads == 0,
      "num_attention_heads ({}) must be a multiple of num_key_value_heads ({})",
      params.num_attention_heads,
      params.num_key_value_heads);
  const int64_t query_size = params.num_attention_heads * params.head_dim;
  const int64_t key_value_size = params.num_key_value_heads * params.head_dim;
  const bool bias = params.attention_bias;
  q_proj = register_module("q_proj", Linear(params.hidden_size, query_size, params.init, bias));
  k_proj = register_module("k_proj", Linear(params.hidden_size, key_value_size, params.init, bias));
  v_proj = register_module("v_proj", Linear(params.hidden_size, key_value_size, params.init, bias));
  o_proj = register_module("o_proj", Linear(query_size, params.hidden_size, params.init, bias));
  if (params.qk_norm_eps) {
    q_norm = register_module("q_norm", RMSNorm(params.head_dim, *params.qk_norm_eps));
    k_norm = register_module("k_norm", RMSNorm(params.head_dim, *params.qk_norm_eps));
  }
}

at::Tensor GroupedQueryAttentionImpl::forward(
    const at::Tensor& hidden_states,
    const PositionEmbeddings& position_embeddings,
    const AttentionMask& mask,
    KeyValueCache* cache) {
  const auto [cos, sin] = position_embeddings;
  const int64_t batch = hidden_states.size(0);
  const int64_t tokens = hidden_states.size(1);

  at::Tensor query = q_proj(hidden_states).view({batch, tokens, num_attention_heads_, head_dim_});  // (B, T, Hq, D)
  at::Tensor key = k_proj(hidden_states).view({batch, tokens, num_key_value_heads_, head_dim_});    // (B, T, Hkv, D)
  at::Tensor value = v_proj(hidden_states).view({batch, tokens, num_key_value_heads_, head_dim_});  // (B, T, Hkv, D)

  if (q_norm) {
    std::tie(query, key) = ops::qk_norm_rotary(query, key, q_norm->weight, k_norm->weight, q_norm->eps(), cos, sin);
  } else {
    std::tie(query, key) = ops::apply_rotary(query, key, cos, sin);
  }
  if (cache != nullptr) {
    std::tie(key, value) = cache->append(key, value);  // (B, S, Hkv, D)
  }
  const at::Tensor attended = ops::attention(query, key, value, mask);  // (B, T, Hq, D)
  return o_proj(attended.reshape({batch, tokens, num_attention_heads_ * head_dim_}));
}

}  // namespace lehr::nn
