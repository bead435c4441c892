// The router of an MoE layer: selects the experts of each token.
#pragma once

#include "lehr/nn/linear.h"
#include "lehr/nn/router_losses.h"

namespace lehr::nn {

/// The routing of N tokens.
struct RoutingResult {
  at::Tensor selected_expert_indices;  ///< (N, k) int64, by descending probability (with a bias: probability + bias).
  at::Tensor selected_probabilities;   ///< (N, k) float32 (float64 for float64): the weights of the experts' results.
  at::Tensor logits;                   ///< (N, E) in the dtype of the hidden states.
  at::Tensor probabilities;            ///< (N, E) softmax of the logits, float32 or float64.
};

/// Softmax over all experts, then top-k (Shazeer et al., https://arxiv.org/abs/1701.06538; as in Qwen3-MoE). The
/// softmax is computed in float32, or float64 for float64 inputs.
///
/// With a bias, the k experts are those with the largest probability + bias, but the results are weighted by the
/// probability alone: the bias balances the experts' load without a gradient of its own (Wang et al.,
/// https://arxiv.org/abs/2408.15664).
class TopKRouterImpl : public Module {
 public:
  /// Throws a usage error unless 1 <= top_k <= num_experts.
  TopKRouterImpl(
      int64_t hidden_size,
      int64_t num_experts,
      int64_t top_k,
      bool renormalize_probabilities,
      bool enable_expert_bias = false,
      Init init = Init::normal(0.02));

  /// Routes tokens (N, H). If `losses` are active, their gradients flow into the gate as well.
  RoutingResult forward(const at::Tensor& tokens, RouterLosses* losses = nullptr);

  /// Raises the bias of experts with fewer tokens than the mean by `rate` and lowers that of the others; the mean of
  /// the bias is unchanged. tokens_per_expert is (E). Does nothing without a bias.
  void update_expert_bias(const at::Tensor& tokens_per_expert, double rate);

  int64_t top_k() const { return top_k_; }
  /// True if the weights of a token's experts are normalized to sum to one.
  bool renormalizes() const { return renormalize_; }

  Linear gate{nullptr};    // weight (E, H)
  at::Tensor expert_bias;  // (E) float32 state; undefined if not enabled

 private:
  int64_t top_k_;
  bool renormalize_;
};
LEHR_MODULE(TopKRouter);

}  // namespace lehr::nn
