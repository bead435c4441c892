#include "lehr/nn/attention.h"

#include "lehr/base/error.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/rms_norm/rms_norm.h"
#include "lehr/ops/rotary/rotary.h"

namespace lehr::nn {

namespace {
void check(const GroupedQueryAttentionParameters& params, int64_t rotary_dim) {
  require(params.hidden_size > 0, "attention: hidden_size: expected 1 or more, found {}", params.hidden_size);
  require(params.head_dim > 0, "attention: head_dim: expected 1 or more, found {}", params.head_dim);
  require(
      params.num_attention_heads > 0 && params.num_key_value_heads > 0 &&
          params.num_attention_heads % params.num_key_value_heads == 0,
      "num_attention_heads ({}) must be a multiple of num_key_value_heads ({})",
      params.num_attention_heads,
      params.num_key_value_heads);
  require(
      rotary_dim >= 0 && rotary_dim <= params.head_dim && rotary_dim % 2 == 0,
      "attention: {}: expected an even number{}, found {}",
      params.rotary_dim ? "rotary_dim" : "head_dim",
      params.rotary_dim ? " from 0 to head_dim (" + std::to_string(params.head_dim) + ")"
                        : ", because the whole head is rotated",
      rotary_dim);
  require(
      !params.sliding_window || *params.sliding_window >= 1,
      "attention: sliding_window: expected 1 or more tokens, found {}; unset it for full attention",
      params.sliding_window.value_or(0));
  require(
      params.qk_norm_eps || params.qk_norm_weight == NormWeight::plain,
      "attention: qk_norm_weight: has no effect without QK-norm; set qk_norm_eps");
  require(
      params.qk_norm_eps || params.qk_norm_width == QKNormWidth::head,
      "attention: qk_norm_width: has no effect without QK-norm; set qk_norm_eps");
  require(
      !params.output_gate || params.qk_norm_width == QKNormWidth::head,
      "attention: qk_norm_width: a norm over the full width of q_proj's output would span its gates too (output_gate); "
      "use QKNormWidth::head");
}
}  // namespace

GroupedQueryAttentionImpl::GroupedQueryAttentionImpl(const GroupedQueryAttentionParameters& params)
    : num_attention_heads_(params.num_attention_heads),
      num_key_value_heads_(params.num_key_value_heads),
      head_dim_(params.head_dim),
      rotary_dim_(params.rotary_dim.value_or(params.head_dim)),
      rotary_style_(params.rotary_style),
      qk_norm_width_(params.qk_norm_width),
      output_gate_(params.output_gate),
      v_norm_eps_(params.v_norm_eps),
      options_{.scale = params.scale, .softcap = params.softcap, .window = params.sliding_window, .sinks = {}} {
  check(params, rotary_dim_);
  ops::check_attention_options("attention", options_);
  const int64_t query_size = params.num_attention_heads * params.head_dim;
  const int64_t key_value_size = params.num_key_value_heads * params.head_dim;
  const bool bias = params.attention_bias;
  q_proj = register_module(
      "q_proj", Linear(params.hidden_size, output_gate_ ? 2 * query_size : query_size, params.init, bias));
  const bool own_keys = !params.reads_keys_and_values;
  if (own_keys) {
    k_proj = register_module("k_proj", Linear(params.hidden_size, key_value_size, params.init, bias));
  }
  if (own_keys && !params.keys_as_values) {
    v_proj = register_module("v_proj", Linear(params.hidden_size, key_value_size, params.init, bias));
  }
  o_proj =
      register_module("o_proj", Linear(query_size, params.hidden_size, params.init, params.output_bias.value_or(bias)));
  if (params.qk_norm_eps) {
    const bool full = qk_norm_width_ == QKNormWidth::full;
    const int64_t query_norm_size = full ? query_size : params.head_dim;
    const int64_t key_norm_size = full ? key_value_size : params.head_dim;
    q_norm = register_module("q_norm", RMSNorm(query_norm_size, *params.qk_norm_eps, params.qk_norm_weight));
    if (own_keys) {
      k_norm = register_module("k_norm", RMSNorm(key_norm_size, *params.qk_norm_eps, params.qk_norm_weight));
    }
  }
  if (params.sinks) {
    declare_parameter("sinks", sinks, {params.num_attention_heads}, params.init);
  }
}

at::Tensor GroupedQueryAttentionImpl::forward(
    const at::Tensor& hidden_states,
    const PositionEmbeddings& position_embeddings,
    const AttentionMask& mask,
    KeyValueCache* cache,
    KeysAndValues* shared) {
  const int64_t batch = hidden_states.size(0);
  const int64_t tokens = hidden_states.size(1);

  const int64_t query_width = output_gate_ ? 2 * head_dim_ : head_dim_;
  at::Tensor query = q_proj(hidden_states);  // (B, T, Hq * D)
  if (q_norm && qk_norm_width_ == QKNormWidth::full) {
    query = q_norm(query);
  }
  query = query.view({batch, tokens, -1, query_width});  // (B, T, Hq, D)
  at::Tensor gate;
  if (output_gate_) {
    gate = query.narrow(-1, head_dim_, head_dim_);  // (B, T, Hq, D)
    query = query.narrow(-1, 0, head_dim_);
  }
  KeysAndValues seen;
  if (k_proj) {
    seen = keys_and_values(hidden_states, position_embeddings, cache, query);
    if (shared != nullptr) {
      // Backward of later layers reads them before FSDP unshards this layer's weights again.
      seen.keys = ops::without_recomputation(seen.keys);
      seen.values = ops::without_recomputation(seen.values);
      *shared = seen;
    }
  } else {
    require(shared != nullptr && shared->keys.defined(), "attention: expected keys and values of an earlier layer");
    seen = *shared;
    query = std::get<0>(with_positions(query, /*key=*/{}, position_embeddings));
  }
  ops::AttentionOptions options = options_;
  options.sinks = sinks;
  at::Tensor attended = attend(  // (B, T, Hq, D)
      query,
      seen.keys,
      seen.values,
      seen.behind > 0 ? ops::without_first_keys(mask, seen.behind, seen.behind + seen.keys.size(1)) : mask,
      options);
  if (output_gate_) {
    attended = attended * gate.sigmoid();
  }
  return o_proj(attended.reshape({batch, tokens, -1}));
}

KeysAndValues GroupedQueryAttentionImpl::keys_and_values(
    const at::Tensor& hidden_states,
    const PositionEmbeddings& position_embeddings,
    KeyValueCache* cache,
    at::Tensor& query) {
  const int64_t batch = hidden_states.size(0);
  const int64_t tokens = hidden_states.size(1);
  at::Tensor key = k_proj(hidden_states);                   // (B, T, Hkv * D)
  at::Tensor value = v_proj ? v_proj(hidden_states) : key;  // (B, T, Hkv * D)
  if (k_norm && qk_norm_width_ == QKNormWidth::full) {
    key = k_norm(key);
  }
  key = key.view({batch, tokens, -1, head_dim_});      // (B, T, Hkv, D)
  value = value.view({batch, tokens, -1, head_dim_});  // (B, T, Hkv, D)
  if (v_norm_eps_) {
    value = rms_norm(value, *v_norm_eps_);
  }
  std::tie(query, key) = with_positions(query, key, position_embeddings);
  if (cache == nullptr) {
    return {.keys = key, .values = value};
  }
  std::tie(key, value) = cache->append(key, value, options_.window);  // (B, S, Hkv, D)
  return {.keys = key, .values = value, .behind = cache->length() - key.size(1)};
}

std::tuple<at::Tensor, at::Tensor> GroupedQueryAttentionImpl::with_positions(
    const at::Tensor& query, const at::Tensor& key, const PositionEmbeddings& position_embeddings) {
  const auto& [cos, sin] = position_embeddings;
  const bool norm_heads = q_norm && qk_norm_width_ == QKNormWidth::head;
  if (rotary_dim_ == 0) {
    return norm_heads ? std::tuple{q_norm(query), key.defined() ? k_norm(key) : key} : std::tuple{query, key};
  }
  require(
      cos.defined() && cos.size(-1) == rotary_dim_,
      "attention: expected angles of {} elements, found {}; construct RotaryEmbeddingProvider with the same rotary_dim",
      rotary_dim_,
      cos.defined() ? cos.size(-1) : 0);
  if (norm_heads) {
    const at::Tensor of_keys = k_norm ? k_norm->weight : at::Tensor();
    return ops::qk_norm_rotary(
        query, key, q_norm->weight, of_keys, q_norm->eps(), cos, sin, rotary_style_, q_norm->kind());
  }
  return ops::apply_rotary(query, key, cos, sin, rotary_style_);
}

}  // namespace lehr::nn
