#include "lehr/nn/moe.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/nn/activation_checkpoint.h"

namespace lehr::nn {

MoELayerImpl::MoELayerImpl(const MoEParameters& p) : tokens_per_expert_(at::zeros({p.num_experts}, at::kLong)) {
  router = register_module(
      "router",
      TopKRouter(TopKRouterParameters{
          .hidden_size = p.hidden_size,
          .num_experts = p.num_experts,
          .top_k = p.top_k,
          .renormalize_probabilities = p.renormalize_probabilities,
          .enable_expert_bias = p.enable_expert_bias,
          .options = p.router_options,
          .init = p.init}));
  const int64_t width = p.latent_size > 0 ? p.latent_size : p.hidden_size;
  grouped_experts = register_module(
      "grouped_experts", GroupedExperts(p.num_experts, width, p.intermediate_size, p.init, p.expert_options));
  if (p.latent_size > 0) {
    fc1_latent_proj = register_module("fc1_latent_proj", Linear(p.hidden_size, width, p.init));
    fc2_latent_proj = register_module("fc2_latent_proj", Linear(width, p.hidden_size, p.init));
  }
  if (p.shared_expert) {
    const int64_t inner = p.shared_expert->intermediate_size;
    if (p.expert_options.relu_squared) {
      shared_relu_squared = register_module("shared_expert", ReluSquaredMlp(p.hidden_size, inner, p.init));
    } else {
      shared_expert = register_module("shared_expert", SwiGLU(p.hidden_size, inner, p.init));
    }
    if (p.shared_expert->enable_gate) {
      shared_expert_gate = register_module("shared_expert_gate", Linear(p.hidden_size, 1, p.init));
    }
  }
}

at::Tensor MoELayerImpl::shared_output(const at::Tensor& tokens) {
  if (!shared_expert && !shared_relu_squared) {
    return {};
  }
  const at::Tensor output = shared_expert ? shared_expert(tokens) : shared_relu_squared(tokens);
  return shared_expert_gate ? at::sigmoid(shared_expert_gate(tokens)) * output : output;
}

at::Tensor MoELayerImpl::forward(const at::Tensor& hidden_states, const at::Tensor& routed) {
  const at::Tensor tokens = hidden_states.reshape({-1, hidden_states.size(-1)});  // (N, H)
  const RoutingResult routing = router(routed.defined() ? routed.reshape(tokens.sizes()) : tokens, losses_.get());
  const auto permutation = dispatcher_->sort(routing.selected_expert_indices, num_experts());
  const auto dispatch = dispatcher_->start(fc1_latent_proj ? fc1_latent_proj(tokens) : tokens, permutation);
  const at::Tensor shared = shared_output(tokens);
  at::Tensor output = dispatch->run(grouped_experts, routing.selected_probabilities);
  if (fc2_latent_proj) {
    output = fc2_latent_proj(output);
  }
  if (shared.defined()) {
    output = output + shared;
  }

  if (!is_recomputing() && operator_watch() == nullptr) {
    const at::NoGradGuard no_grad;
    last_routing_ = {};
    if (!is_training()) {
      last_routing_ = {
          .selected_expert_indices = routing.selected_expert_indices,
          .selected_probabilities = routing.selected_probabilities.detach(),
          .logits = routing.logits.detach(),
          .scores = routing.scores.detach(),
          .probabilities = routing.probabilities.detach()};
    }
    const at::Tensor counts =
        losses_ ? losses_->count_choices(routing.selected_expert_indices, permutation.counts) : permutation.counts;
    if (losses_ && losses_->active()) {
      losses_->add(routing.logits, routing.probabilities, counts);
    }
    tokens_per_expert_ = tokens_per_expert_.to(counts.device()) + counts;
  }
  return output.view(hidden_states.sizes());
}

int64_t MoELayerImpl::num_idle_parameters() const {
  return count_parameters(*grouped_experts) / num_experts() * (num_experts() - router->top_k());
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
  const auto layers = moe_layers(root);
  int64_t experts = 0;
  for (const MoELayerImpl* layer : layers) {
    experts = std::max(experts, layer->num_experts());
  }
  std::vector<at::Tensor> rows;
  for (const MoELayerImpl* layer : layers) {
    const at::Tensor& counts = layer->moe_tokens_per_expert();
    const int64_t lacking = experts - layer->num_experts();
    rows.push_back(lacking == 0 ? counts : at::cat({counts, at::full({lacking}, -1, counts.options())}));
  }
  return rows.empty() ? at::Tensor() : at::stack(rows);
}

void reset_moe_stats(torch::nn::Module& root) {
  for (MoELayerImpl* layer : moe_layers(root)) {
    layer->reset_moe_stats();
  }
}

void update_expert_bias(torch::nn::Module& root, double rate) {
  for (MoELayerImpl* layer : moe_layers(root)) {
    layer->router->update_expert_bias(layer->moe_tokens_per_expert(), rate);
  }
}

void update_expert_bias(torch::nn::Module& root, const at::Tensor& tokens_per_expert, double rate) {
  const auto layers = moe_layers(root);
  require(
      layers.empty() ||
          (tokens_per_expert.dim() == 2 && tokens_per_expert.size(0) == static_cast<int64_t>(layers.size())),
      "update_expert_bias: expected counts of {} MoE layers, one row each",
      layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const at::Tensor row = tokens_per_expert[static_cast<int64_t>(i)];
    layers[i]->router->update_expert_bias(row.narrow(0, 0, layers[i]->num_experts()), rate);
  }
}

}  // namespace lehr::nn
