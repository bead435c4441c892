#include "lehr/nn/moe.h"

#include "lehr/nn/activation_checkpoint.h"

namespace lehr::nn {

MoELayerImpl::MoELayerImpl(const MoEParameters& p) : tokens_per_expert_(at::zeros({p.num_experts}, at::kLong)) {
  router =
      register_module("router", TopKRouter(p.hidden_size, p.num_experts, p.top_k, p.renormalize_probabilities, p.init));
  grouped_experts =
      register_module("grouped_experts", GroupedSwiGLU(p.num_experts, p.hidden_size, p.intermediate_size, p.init));
}

at::Tensor MoELayerImpl::forward(const at::Tensor& hidden_states) {
  const at::Tensor tokens = hidden_states.reshape({-1, hidden_states.size(-1)});  // (N, H)
  const RoutingResult routing = router(tokens, losses_.get());
  const auto permutation = ops::sort_by_expert(routing.selected_expert_indices, tokens_per_expert_.size(0));
  const at::Tensor results = grouped_experts(ops::permute_tokens(tokens, permutation), permutation.ends);  // (N*k, H)
  const at::Tensor weights = routing.selected_probabilities.to(results.scalar_type());
  const at::Tensor output = ops::combine_tokens(results, weights, permutation);

  if (!is_recomputing()) {
    at::NoGradGuard no_grad;
    if (losses_ && losses_->active()) {
      losses_->add(routing.logits, routing.probabilities, permutation.counts);
    }
    tokens_per_expert_ = tokens_per_expert_.to(permutation.counts.device()) + permutation.counts;
    last_routing_ = {
        .selected_expert_indices = routing.selected_expert_indices,
        .selected_probabilities = routing.selected_probabilities.detach(),
        .logits = routing.logits.detach(),
        .probabilities = routing.probabilities.detach()};
  }
  return output.view(hidden_states.sizes());
}

int64_t MoELayerImpl::num_idle_parameters() const {
  const int64_t experts = tokens_per_expert_.size(0);
  return count_parameters(*grouped_experts) / experts * (experts - router->top_k());
}

void MoELayerImpl::reset_moe_stats() {
  tokens_per_expert_ = at::zeros_like(tokens_per_expert_);
}

std::vector<MoELayerImpl*> moe_layers(torch::nn::Module& root) {
  std::vector<MoELayerImpl*> layers;
  for (const auto& module : root.modules(/*include_self=*/false)) {
    if (auto* layer = dynamic_cast<MoELayerImpl*>(module.get())) {
      layers.push_back(layer);
    }
  }
  return layers;
}

at::Tensor moe_tokens_per_expert(torch::nn::Module& root) {
  std::vector<at::Tensor> rows;
  for (MoELayerImpl* layer : moe_layers(root)) {
    rows.push_back(layer->moe_tokens_per_expert());
  }
  return rows.empty() ? at::Tensor() : at::stack(rows);
}

void reset_moe_stats(torch::nn::Module& root) {
  for (MoELayerImpl* layer : moe_layers(root)) {
    layer->reset_moe_stats();
  }
}

}  // namespace lehr::nn
