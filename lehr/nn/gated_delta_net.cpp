#include "lehr/nn/gated_delta_net.h"

#include "lehr/base/error.h"
#include "lehr/ops/silu_mul/silu_mul.h"

namespace lehr::nn {

namespace {
void check(const GatedDeltaNetParameters& params) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden_size", params.hidden_size},
      {"num_key_heads", params.num_key_heads},
      {"num_value_heads", params.num_value_heads},
      {"key_head_dim", params.key_head_dim},
      {"value_head_dim", params.value_head_dim},
      {"conv_kernel", params.conv_kernel}};
  for (const auto& [name, size] : sizes) {
    require(size > 0, "gated DeltaNet: {}: expected 1 or more, found {}", name, size);
  }
  require(
      params.num_value_heads % params.num_key_heads == 0,
      "gated DeltaNet: num_value_heads: expected a multiple of num_key_heads ({}), found {}",
      params.num_key_heads,
      params.num_value_heads);
  require(
      params.conv_kernel <= ops::kMostTaps,
      "gated DeltaNet: conv_kernel: expected at most {}, found {}",
      ops::kMostTaps,
      params.conv_kernel);
}
}  // namespace

CausalConv1dImpl::CausalConv1dImpl(int64_t key_channels, int64_t value_channels, int64_t width, Init init) {
  declare_parameter("query", query, {key_channels, 1, width}, init);
  declare_parameter("key", key, {key_channels, 1, width}, init);
  declare_parameter("value", value, {value_channels, 1, width}, init);
}

GatedDeltaNetImpl::GatedDeltaNetImpl(const GatedDeltaNetParameters& params) : params_(params) {
  check(params);
  const int64_t keys = params.num_key_heads * params.key_head_dim;
  const int64_t values = params.num_value_heads * params.value_head_dim;
  const int64_t hidden = params.hidden_size;
  in_proj_qkvz = register_module("in_proj_qkvz", Linear(hidden, 2 * keys + 2 * values, params.init));
  in_proj_ba = register_module("in_proj_ba", Linear(hidden, 2 * params.num_value_heads, params.init));
  conv1d = register_module("conv1d", CausalConv1d(keys, values, params.conv_kernel, params.init));
  declare_parameter("dt_bias", dt_bias, {params.num_value_heads}, Init::ones());
  declare_parameter("A_log", a_log, {params.num_value_heads}, Init::log_uniform(0.01, 16));
  norm = register_module("norm", RMSNorm(params.value_head_dim, params.norm_eps));
  out_proj = register_module("out_proj", Linear(values, hidden, params.init));
}

at::Tensor GatedDeltaNetImpl::forward(
    const at::Tensor& hidden_states, const ops::AttentionMask& mask, KeyValueCache* cache) {
  const int64_t batch = hidden_states.size(0), tokens = hidden_states.size(1);
  const int64_t key_dim = params_.key_head_dim, value_dim = params_.value_head_dim;
  const int64_t group = params_.num_value_heads / params_.num_key_heads, group_dim = group * value_dim;
  const at::Tensor visible =
      mask.key_padding.defined() ? hidden_states * mask.key_padding.unsqueeze(-1) : hidden_states;
  const auto by_value_head = [&](const at::Tensor& x) { return x.reshape({batch, tokens, -1, value_dim}); };

  const auto qkvz = in_proj_qkvz(visible)
                        .view({batch, tokens, -1, 2 * key_dim + 2 * group_dim})  // (B, T, Hk, ...)
                        .split_with_sizes({key_dim, key_dim, group_dim, group_dim}, -1);
  const auto ba = in_proj_ba(visible).view({batch, tokens, -1, 2 * group}).split(group, -1);
  const auto wide = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor b = ba[0].reshape({batch, tokens, -1}).to(wide);  // (B, T, Hv)
  const at::Tensor a = ba[1].reshape({batch, tokens, -1}).to(wide);
  const LinearAttentionStreams streams{
      .heads = {qkvz[0].contiguous(), qkvz[1].contiguous(), by_value_head(qkvz[2])},
      .weights = {conv1d->query, conv1d->key, conv1d->value},
      .decay = -a_log.to(wide).exp() * at::softplus(a + dt_bias.to(wide)),
      .beta = b.sigmoid()};
  const at::Tensor y = mix(streams, mask, cache);
  const at::Tensor gated = ops::silu_mul(by_value_head(qkvz[3]), norm(y));  // (B, T, Hv, V)
  return out_proj(gated.reshape({batch, tokens, -1}));
}

}  // namespace lehr::nn
