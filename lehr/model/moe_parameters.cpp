#include "lehr/model/moe_parameters.h"

namespace lehr::model {

nn::MoEParameters moe_parameters(const MoEConfig& moe, const LayerSizes& sizes) {
  std::optional<nn::SharedExpertParameters> shared;
  if (moe.shared_expert_width() > 0) {
    shared = {.intermediate_size = moe.shared_expert_width(), .enable_gate = false};
  }
  return {
      .hidden_size = sizes.hidden_size,
      .intermediate_size = moe.moe_intermediate_size,
      .num_experts = moe.num_experts,
      .top_k = moe.num_experts_per_tok,
      .renormalize_probabilities = moe.norm_topk_prob,
      .enable_expert_bias = moe.expert_bias,
      .router_options = moe.router,
      .expert_options = moe.experts,
      .shared_expert = shared,
      .latent_size = moe.moe_latent_size,
      .init = nn::Init::normal(sizes.initializer_range)};
}

}  // namespace lehr::model
