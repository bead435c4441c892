// Which experts a token goes to.
#pragma once

#include "lehr/nn/linear.h"
#include "lehr/nn/router_losses.h"

namespace lehr::nn {

/// The router's decision for N tokens.
struct RoutingResult {
  at::Tensor selected_expert_indices;  ///< (N, k) int64, by descending probability (with a bias: of their sum).
  at::Tensor selected_probabilities;   ///< (N, k) float32 (float64 under float64): what the experts' results weigh.
  at::Tensor logits;                   ///< (N, E) in the type of the hidden states.
  at::Tensor probabilities;            ///< (N, E) softmax of the logits, float32 or float64.
};

/// Softmax over all experts, then the k most probable ones (Shazeer et al., https://arxiv.org/abs/1701.06538; as in
/// Qwen3-MoE). The softmax is computed in float32, or float64 for float64 inputs.
///
/// With a bias the k experts are those of the largest probability + bias, while the results are weighed by the
/// probability alone: the bias evens out the experts' load without a gradient of its own (Wang et al.,
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

  /// Decides for tokens (N, H). With `losses` that are active, their gradients flow into the gate as well.
  RoutingResult forward(const at::Tensor& tokens, RouterLosses* losses = nullptr);

  /// Raises the bias of experts that got fewer tokens than the mean, lowers that of the others, by `rate` each; the
  /// bias keeps its mean. tokens_per_expert (E). Without a bias nothing happens.
  void update_expert_bias(const at::Tensor& tokens_per_expert, double rate);

  int64_t top_k() const { return top_k_; }
  /// Whether the weights of a token's experts are made to sum up to one.
  bool renormalizes() const { return renormalize_; }

  Linear gate{nullptr};    // weight (E, H)
  at::Tensor expert_bias;  // (E) float32 state; undefined if not enabled

 private:
  int64_t top_k_;
  bool renormalize_;
};
LEHR_MODULE(TopKRouter);

}  // namespace lehr::nn
