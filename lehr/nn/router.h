// Which experts a token goes to.
#pragma once

#include "lehr/nn/linear.h"
#include "lehr/nn/router_losses.h"

namespace lehr::nn {

/// The router's decision for N tokens.
struct RoutingResult {
  at::Tensor selected_expert_indices;  ///< (N, k) int64, by descending probability.
  at::Tensor selected_probabilities;   ///< (N, k) float32 (float64 under float64): what the experts' results weigh.
  at::Tensor logits;                   ///< (N, E) in the type of the hidden states.
  at::Tensor probabilities;            ///< (N, E) softmax of the logits, float32 or float64.
};

/// Softmax over all experts, then the k most probable ones (Shazeer et al., https://arxiv.org/abs/1701.06538; as in
/// Qwen3-MoE). The softmax is computed in float32, or float64 for float64 inputs.
class TopKRouterImpl : public Module {
 public:
  /// Throws a usage error unless 1 <= top_k <= num_experts.
  TopKRouterImpl(
      int64_t hidden_size,
      int64_t num_experts,
      int64_t top_k,
      bool renormalize_probabilities,
      Init init = Init::normal(0.02));

  /// Decides for tokens (N, H). With `losses` that are active, their gradients flow into the gate as well.
  RoutingResult forward(const at::Tensor& tokens, RouterLosses* losses = nullptr);

  int64_t top_k() const { return top_k_; }

  Linear gate{nullptr};  // weight (E, H)

 private:
  int64_t top_k_;
  bool renormalize_;
};
TORCH_MODULE(TopKRouter);

}  // namespace lehr::nn
