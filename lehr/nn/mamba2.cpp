#include "lehr/nn/mamba2.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/ops/rms_norm/rms_norm.h"
#include "lehr/ops/silu_mul/silu_mul.h"

namespace lehr::nn {

namespace {
void check(const Mamba2Parameters& params) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden_size", params.hidden_size},
      {"num_heads", params.num_heads},
      {"head_dim", params.head_dim},
      {"num_groups", params.num_groups},
      {"state_size", params.state_size},
      {"conv_kernel", params.conv_kernel}};
  for (const auto& [name, size] : sizes) {
    require(size > 0, "Mamba-2: {}: expected 1 or more, found {}", name, size);
  }
  require(
      params.num_heads % params.num_groups == 0,
      "Mamba-2: num_heads: expected a multiple of num_groups ({}), found {}",
      params.num_groups,
      params.num_heads);
  require(
      params.conv_kernel <= ops::kMostTaps,
      "Mamba-2: conv_kernel: expected at most {}, found {}",
      ops::kMostTaps,
      params.conv_kernel);
  require(params.min_time_step >= 0, "Mamba-2: min_time_step: expected 0 or more, found {}", params.min_time_step);
}

// Initial values of dt_bias: softplus of them is log-uniform.
Init initial_steps(const Mamba2Parameters& params) {
  const double low = std::max(params.min_time_step, params.initial_step_floor);
  require(
      low > 0 && params.max_initial_step >= low,
      "Mamba-2: max_initial_step: expected at least min_time_step and initial_step_floor, above 0, found {}",
      params.max_initial_step);
  return Init::time_step(low, params.max_initial_step);
}
}  // namespace

Mamba2ConvImpl::Mamba2ConvImpl(const Mamba2Parameters& params) {
  const int64_t values = params.num_heads * params.head_dim, keys = params.num_groups * params.state_size;
  declare_parameter("x", x, {values, 1, params.conv_kernel}, params.init);
  declare_parameter("b", b, {keys, 1, params.conv_kernel}, params.init);
  declare_parameter("c", c, {keys, 1, params.conv_kernel}, params.init);
  if (params.conv_bias) {
    declare_parameter("x_bias", x_bias, {values}, Init::zeros());
    declare_parameter("b_bias", b_bias, {keys}, Init::zeros());
    declare_parameter("c_bias", c_bias, {keys}, Init::zeros());
  }
}

GroupRMSNormImpl::GroupRMSNormImpl(int64_t size, int64_t group_size, double eps) : group_size_(group_size), eps_(eps) {
  declare_parameter("weight", weight, {size}, Init::ones());
}

at::Tensor GroupRMSNormImpl::forward(const at::Tensor& input) {
  const at::Tensor groups = input.unflatten(-1, {-1, group_size_});
  return ops::rms_norm(groups, at::ones({group_size_}, input.options()), eps_).flatten(-2) * weight;
}

Mamba2Impl::Mamba2Impl(const Mamba2Parameters& params) : params_(params) {
  check(params);
  const int64_t values = params.num_heads * params.head_dim, keys = params.num_groups * params.state_size;
  in_proj =
      register_module("in_proj", Linear(params.hidden_size, 2 * values + 2 * keys + params.num_heads, params.init));
  conv1d = register_module("conv1d", Mamba2Conv(params));
  declare_parameter("dt_bias", dt_bias, {params.num_heads}, initial_steps(params));
  declare_parameter("A_log", a_log, {params.num_heads}, Init::log_uniform(1, 16));
  declare_parameter("D", d, {params.num_heads}, Init::ones());
  norm = register_module("norm", GroupRMSNorm(values, values / params.num_groups, params.norm_eps));
  out_proj = register_module("out_proj", Linear(values, params.hidden_size, params.init));
}

at::Tensor Mamba2Impl::forward(const at::Tensor& hidden_states, const ops::AttentionMask& mask, KeyValueCache* cache) {
  const int64_t batch = hidden_states.size(0), tokens = hidden_states.size(1), state = params_.state_size;
  const int64_t group = params_.num_heads / params_.num_groups, group_dim = group * params_.head_dim;
  const auto by_head = [&](const at::Tensor& x) { return x.reshape({batch, tokens, -1, params_.head_dim}); };

  const auto projected = in_proj(hidden_states)
                             .view({batch, tokens, -1, 2 * group_dim + 2 * state + group})  // (B, T, G, ...)
                             .split_with_sizes({group_dim, group_dim, state, state, group}, -1);
  const auto wide = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor raw = projected[4].reshape({batch, tokens, -1}).to(wide);  // (B, T, H)
  const at::Tensor dt = at::softplus(raw + dt_bias.to(wide)).clamp_min(params_.min_time_step);
  const LinearAttentionStreams streams{
      .heads = {projected[3].contiguous(), projected[2].contiguous(), by_head(projected[1])},
      .weights = {conv1d->c, conv1d->b, conv1d->x},
      .decay = -a_log.to(wide).exp() * dt,
      .beta = dt,
      .update = ops::StateUpdate::add,
      .biases = {conv1d->c_bias, conv1d->b_bias, conv1d->x_bias},
      .skip = d};
  const at::Tensor y = mix(streams, mask, cache);  // (B, T, H, P)
  const at::Tensor gated = ops::silu_mul(by_head(projected[0]), y);
  return out_proj(norm(gated.flatten(2)));
}

}  // namespace lehr::nn
