#include "lehr/nn/router.h"

#include "lehr/base/error.h"

namespace lehr::nn {

TopKRouterImpl::TopKRouterImpl(
    int64_t hidden_size, int64_t num_experts, int64_t top_k, bool renormalize_probabilities, Init init)
    : top_k_(top_k), renormalize_(renormalize_probabilities) {
  require(
      top_k >= 1 && top_k <= num_experts,
      "num_experts_per_tok: expected 1 to num_experts ({}), found {}",
      num_experts,
      top_k);
  gate = register_module("gate", Linear(hidden_size, num_experts, init));
}

RoutingResult TopKRouterImpl::forward(const at::Tensor& tokens, RouterLosses* losses) {
  const at::Tensor logits = gate(tokens);  // (N, E)
  const auto wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor probabilities = at::softmax(logits, -1, wide);
  if (losses != nullptr && losses->active() && probabilities.requires_grad()) {
    probabilities = losses->attach(probabilities, logits);
  }
  auto [selected, indices] = probabilities.topk(top_k_);
  if (renormalize_) {
    selected = selected / selected.sum(-1, /*keepdim=*/true);
  }
  return {
      .selected_expert_indices = indices,
      .selected_probabilities = selected,
      .logits = logits,
      .probabilities = probabilities};
}

}  // namespace lehr::nn
