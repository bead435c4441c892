#include "lehr/nn/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "lehr/base/error.h"
#include "lehr/nn/rms_norm.h"

namespace lehr::nn {

void TopKRouterParameters::check() const {
  const int64_t groups = options.n_group, chosen = options.topk_group;
  require(
      top_k >= 1 && top_k <= num_experts,
      "num_experts_per_tok: expected 1 to num_experts ({}), found {}",
      num_experts,
      top_k);
  require(
      groups == 1 || (groups > 1 && num_experts % groups == 0 && num_experts >= 2 * groups),
      "n_group: expected a divisor of the number of experts ({}) with two experts or more in each group, found {}",
      num_experts,
      groups);
  require(chosen >= 1 && chosen <= groups, "topk_group: expected 1 to n_group ({}), found {}", groups, chosen);
  require(
      top_k <= num_experts / groups * chosen,
      "num_experts_per_tok: expected at most the {} experts of topk_group = {} groups, found {}",
      num_experts / groups * chosen,
      chosen,
      top_k);
  require(
      options.routed_scaling_factor > 0,
      "routed_scaling_factor: expected a positive number, found {}",
      options.routed_scaling_factor);
}

TopKRouterImpl::TopKRouterImpl(const TopKRouterParameters& params)
    : top_k_(params.top_k), renormalize_(params.renormalize_probabilities), options_(params.options) {
  params.check();
  gate = register_module("gate", Linear(params.hidden_size, params.num_experts, params.init, options_.gate_bias));
  if (params.enable_expert_bias) {
    declare_state("expert_bias", expert_bias, {params.num_experts}, Init::zeros());
  }
  if (options_.input_norm_eps) {
    declare_parameter("scale", scale, {params.hidden_size}, Init::ones());
  }
  if (options_.per_expert_scale) {
    declare_parameter("per_expert_scale", per_expert_scale, {params.num_experts}, Init::ones());
  }
}

at::Tensor TopKRouterImpl::scores(const at::Tensor& logits) const {
  const auto wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return options_.score == RouterScore::softmax ? at::softmax(logits, -1, wide) : at::sigmoid(logits.to(wide));
}

at::Tensor TopKRouterImpl::preferences(const at::Tensor& scores) const {
  const at::Tensor biased = expert_bias.defined() ? scores + expert_bias : scores;
  if (options_.topk_group == options_.n_group) {
    return biased;
  }
  const at::Tensor grouped = biased.view({biased.size(0), options_.n_group, -1});  // (N, groups, E / groups)
  const at::Tensor of_groups = std::get<0>(grouped.topk(2)).sum(-1);
  const at::Tensor rank =
      at::argsort(at::argsort(of_groups, int64_t{-1}, /*descending=*/true), int64_t{-1});  // 0: the best
  const at::Tensor out = rank >= options_.topk_group;
  return grouped.masked_fill(out.unsqueeze(-1), -std::numeric_limits<double>::infinity()).view(biased.sizes());
}

at::Tensor TopKRouterImpl::weights(const at::Tensor& selected, const at::Tensor& scaled) const {
  at::Tensor result = scaled;
  if (renormalize_) {
    const at::Tensor sum = selected.sum(-1, /*keepdim=*/true);
    result = result / (options_.norm_eps > 0 ? sum + options_.norm_eps : sum);
  }
  return options_.routed_scaling_factor == 1 ? result : result * options_.routed_scaling_factor;
}

RoutingResult TopKRouterImpl::forward(const at::Tensor& tokens, RouterLosses* losses) {
  at::Tensor input = tokens;
  if (options_.input_norm_eps) {
    const double root = std::sqrt(static_cast<double>(tokens.size(-1)));
    input = rms_norm(tokens, *options_.input_norm_eps) * scale * (1 / root);
  }
  const at::Tensor logits = gate(input);  // (N, E)
  at::Tensor scored = scores(logits);
  at::Tensor probabilities = scored, sum;
  if (options_.score == RouterScore::sigmoid) {
    sum = scored.sum(-1, /*keepdim=*/true);
    probabilities = scored / sum;
  }
  if (losses != nullptr && losses->active() && probabilities.requires_grad()) {
    // Scores are made of the probabilities, so that backward reaches the gradients of the losses.
    probabilities = losses->attach(probabilities, logits);
    scored = sum.defined() ? probabilities * sum : probabilities;
  }
  at::Tensor selected;
  at::Tensor indices;
  if (expert_bias.defined() || options_.topk_group < options_.n_group) {
    indices = std::get<1>(preferences(scored.detach()).topk(top_k_));
    selected = scored.gather(-1, indices);
  } else {
    std::tie(selected, indices) = scored.topk(top_k_);
  }
  const at::Tensor scaled = per_expert_scale.defined() ? (scored * per_expert_scale).gather(-1, indices) : selected;
  return {
      .selected_expert_indices = indices,
      .selected_probabilities = weights(selected, scaled),
      .logits = logits,
      .scores = scored,
      .probabilities = probabilities};
}

void TopKRouterImpl::update_expert_bias(const at::Tensor& tokens_per_expert, double rate) {
  if (!expert_bias.defined()) {
    return;
  }
  const auto parameters = nn::named_parameters(*gate);
  if (std::none_of(
          parameters.begin(), parameters.end(), [](const auto& named) { return named.parameter->trainable(); })) {
    return;
  }
  at::NoGradGuard no_grad;
  const at::Tensor tokens = tokens_per_expert.to(expert_bias.options());
  const at::Tensor change = rate * (tokens.mean() - tokens).sign();
  expert_bias.add_(change - change.mean());
}

}  // namespace lehr::nn
