#include "lehr/nn/latent_attention.h"

#include <cmath>

#include "lehr/base/error.h"
#include "lehr/ops/rotary/rotary.h"

namespace lehr::nn {

namespace {
void check(const MultiHeadLatentAttentionParameters& params) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden_size", params.hidden_size},
      {"num_attention_heads", params.num_attention_heads},
      {"q_lora_rank", params.q_lora_rank.value_or(1)},
      {"kv_lora_rank", params.kv_lora_rank},
      {"qk_nope_head_dim", params.qk_nope_head_dim},
      {"qk_rope_head_dim", params.qk_rope_head_dim},
      {"v_head_dim", params.v_head_dim}};
  for (const auto& [name, size] : sizes) {
    require(size > 0, "latent attention: {}: expected 1 or more, found {}", name, size);
  }
  require(
      params.qk_rope_head_dim % 2 == 0,
      "latent attention: qk_rope_head_dim: expected an even number, found {}",
      params.qk_rope_head_dim);
}
}  // namespace

MultiHeadLatentAttentionImpl::MultiHeadLatentAttentionImpl(const MultiHeadLatentAttentionParameters& params)
    : params_(params) {
  check(params);
  const int64_t heads = params.num_attention_heads, hidden = params.hidden_size;
  const int64_t query_dim = params.qk_nope_head_dim + params.qk_rope_head_dim;
  options_.scale = params.scale.value_or(1 / std::sqrt(static_cast<double>(query_dim)));
  ops::check_attention_options("latent attention", options_);
  const Init& init = params.init;
  const bool bias = params.attention_bias;
  if (params.q_lora_rank) {
    q_a_proj = register_module("q_a_proj", Linear(hidden, *params.q_lora_rank, init, bias));
    q_a_layernorm = register_module("q_a_layernorm", RMSNorm(*params.q_lora_rank, params.norm_eps));
    q_b_proj = register_module("q_b_proj", Linear(*params.q_lora_rank, heads * query_dim, init));
  } else {
    q_proj = register_module("q_proj", Linear(hidden, heads * query_dim, init));
  }
  kv_a_proj_with_mqa =
      register_module("kv_a_proj_with_mqa", Linear(hidden, params.kv_lora_rank + params.qk_rope_head_dim, init, bias));
  kv_a_layernorm = register_module("kv_a_layernorm", RMSNorm(params.kv_lora_rank, params.norm_eps));
  kv_b_proj = register_module(
      "kv_b_proj", Linear(params.kv_lora_rank, heads * (params.qk_nope_head_dim + params.v_head_dim), init));
  o_proj = register_module("o_proj", Linear(heads * params.v_head_dim, hidden, init, bias));
}

at::Tensor MultiHeadLatentAttentionImpl::forward(
    const at::Tensor& hidden_states,
    const PositionEmbeddings& position_embeddings,
    const AttentionMask& mask,
    KeyValueCache* cache) {
  const int64_t batch = hidden_states.size(0), tokens = hidden_states.size(1);
  const int64_t nope = params_.qk_nope_head_dim, rope = params_.qk_rope_head_dim, rank = params_.kv_lora_rank;
  const auto& [cos, sin] = position_embeddings;
  require(
      cos.defined() && cos.size(-1) == rope,
      "latent attention: expected angles of qk_rope_head_dim = {} elements, found {}",
      rope,
      cos.defined() ? cos.size(-1) : 0);

  const at::Tensor flat = q_proj ? q_proj(hidden_states) : q_b_proj(q_a_layernorm(q_a_proj(hidden_states)));
  const at::Tensor query = flat.view({batch, tokens, -1, nope + rope});          // (B, T, n, nope + rope)
  const at::Tensor compressed = kv_a_proj_with_mqa(hidden_states).unsqueeze(2);  // (B, T, 1, rank + rope)
  at::Tensor latent = kv_a_layernorm(compressed.narrow(-1, 0, rank));            // (B, T, 1, rank)
  auto [q_rope, k_rope] = ops::apply_rotary(
      query.narrow(-1, nope, rope), compressed.narrow(-1, rank, rope), cos, sin, params_.rotary_style);
  const at::Tensor q_nope = query.narrow(-1, 0, nope);

  bool decoding = false;
  if (cache != nullptr) {
    decoding = cache->length() > 0;
    std::tie(latent, k_rope) = cache->append(latent, k_rope);  // (B, S, 1, rank) and (B, S, 1, rope)
  }
  // Folding bypasses the forward of kv_b_proj, so it needs the plain weight: without an adapter, and not in float8.
  const bool folds = decoding && !kv_b_proj->adapter() && !kv_b_proj->float8();
  const at::Tensor attended = folds ? attend_to_latents(q_nope, q_rope, latent, k_rope, mask)
                                    : attend_to_heads(q_nope, q_rope, latent, k_rope, mask);  // (B, T, n, v)
  return o_proj(attended.reshape({batch, tokens, -1}));
}

at::Tensor MultiHeadLatentAttentionImpl::attend_to_heads(
    const at::Tensor& q_nope,
    const at::Tensor& q_rope,
    const at::Tensor& latent,
    const at::Tensor& k_rope,
    const AttentionMask& mask) {
  const int64_t batch = latent.size(0), keys = latent.size(1), heads = q_nope.size(2);
  const int64_t nope = params_.qk_nope_head_dim, rope = params_.qk_rope_head_dim;
  const at::Tensor expanded = kv_b_proj(latent.squeeze(2)).view({batch, keys, heads, nope + params_.v_head_dim});
  const at::Tensor key = at::cat({expanded.narrow(-1, 0, nope), k_rope.expand({batch, keys, heads, rope})}, -1);
  const at::Tensor value = expanded.narrow(-1, nope, params_.v_head_dim);
  return attend(at::cat({q_nope, q_rope}, -1), key, value, mask, options_);
}

// With kv_b_proj = [K; V] for a head: (K c) . q = c . (K^T q), and sum p (V c) = V sum p c. So all heads share one key,
// which is the latent and the rotated part, and one value, which is the latent.
at::Tensor MultiHeadLatentAttentionImpl::attend_to_latents(
    const at::Tensor& q_nope,
    const at::Tensor& q_rope,
    const at::Tensor& latent,
    const at::Tensor& k_rope,
    const AttentionMask& mask) {
  const int64_t nope = params_.qk_nope_head_dim;
  const at::Tensor maps = kv_b_proj->weight.view({q_nope.size(2), -1, params_.kv_lora_rank});
  const at::Tensor to_keys = maps.narrow(1, 0, nope);                     // (n, nope, rank)
  const at::Tensor to_values = maps.narrow(1, nope, params_.v_head_dim);  // (n, v, rank)
  const at::Tensor query = at::cat({at::einsum("bthd,hdr->bthr", {q_nope, to_keys}), q_rope}, -1);
  const at::Tensor attended = ops::attention(query, at::cat({latent, k_rope}, -1), latent, mask, options_);
  return at::einsum("bthr,hdr->bthd", {attended, to_values});
}

}  // namespace lehr::nn
