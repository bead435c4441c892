// The router of an MoE layer: selects the experts of each token.
#pragma once

#include <optional>

#include "lehr/nn/linear.h"
#include "lehr/nn/router_losses.h"

namespace lehr::nn {

/// The routing of N tokens.
struct RoutingResult {
  at::Tensor selected_expert_indices;  ///< (N, k) int64, by descending preference (score, or score + bias).
  at::Tensor selected_probabilities;   ///< (N, k) float32 (float64 for float64): the weights of the experts' results.
  at::Tensor logits;                   ///< (N, E) in the dtype of the hidden states.
  at::Tensor scores;                   ///< (N, E), float32 or float64; see RouterScore.
  at::Tensor probabilities;            ///< (N, E), the scores of a token divided by their sum.
};

/// The function that turns the logits of a token into scores.
enum class RouterScore {
  softmax,  ///< Probabilities over all experts (Shazeer et al., https://arxiv.org/abs/1701.06538; as in Qwen3-MoE).
  sigmoid,  ///< The sigmoid of each logit (DeepSeek-V3, https://arxiv.org/abs/2412.19437).
};

/// Options in which the routers of models differ, with the names of Hugging Face's config.json where it has one.
struct RouterOptions {
  RouterScore score = RouterScore::softmax;
  int64_t n_group = 1;     ///< Number of groups of neighbouring experts, all of one size.
  int64_t topk_group = 1;  ///< Number of groups that a token's experts are from: those with the largest sums of their
                           ///< two best preferences.
  double norm_eps = 0;     ///< Added to the sum by which weights are normalized.
  double routed_scaling_factor = 1;  ///< On the weights, after they are normalized.
  bool gate_bias = false;            ///< A bias of the logits, with a gradient (gpt-oss); not enable_expert_bias.
  /// Epsilon of an RMSNorm of the tokens that the gate reads, with a learned weight `scale` that is divided by
  /// sqrt(hidden_size) (Gemma 4); none if unset.
  std::optional<double> input_norm_eps = {};
  bool per_expert_scale = false;  ///< A learned factor on the weights of each expert's results, after they are
                                  ///< normalized (Gemma 4).
};

/// Shape of a router.
struct TopKRouterParameters {
  int64_t hidden_size;
  int64_t num_experts;
  int64_t top_k;                          ///< Experts per token.
  bool renormalize_probabilities = true;  ///< The weights of a token's experts sum to one, before the scaling factor.
  bool enable_expert_bias = false;
  RouterOptions options = {};
  Init init = Init::normal(0.02);

  /// Throws a usage error that names the parameter unless 1 <= top_k <= num_experts and the groups fit.
  void check() const;
};

/// Scores of all experts, then top-k. Scores are computed in float32, or float64 for float64 inputs.
///
/// With a bias, the k experts are those with the largest score + bias, but the results are weighted by the score alone:
/// the bias balances the experts' load without a gradient of its own (Wang et al., https://arxiv.org/abs/2408.15664).
class TopKRouterImpl : public Module {
 public:
  /// Throws a usage error for parameters that do not pass their check.
  explicit TopKRouterImpl(const TopKRouterParameters& params);

  /// Routes tokens (N, H). If `losses` are active, their gradients flow into the gate as well.
  RoutingResult forward(const at::Tensor& tokens, RouterLosses* losses = nullptr);

  /// The scores of logits (N, E); a logit of -infinity, as for an absent expert, has score 0.
  at::Tensor scores(const at::Tensor& logits) const;
  /// The values (N, E) whose top k select a token's experts: score + bias; -infinity outside of the token's groups.
  at::Tensor preferences(const at::Tensor& scores) const;
  /// The weights (N, k) of the results of experts with these scores (N, k), without per_expert_scale.
  at::Tensor weights(const at::Tensor& selected) const { return weights(selected, selected); }

  /// Raises the bias of experts with fewer tokens than the mean by `rate` and lowers that of the others; the mean of
  /// the bias is unchanged. tokens_per_expert is (E). Does nothing without a bias, or if the gate is frozen.
  void update_expert_bias(const at::Tensor& tokens_per_expert, double rate);

  int64_t top_k() const { return top_k_; }
  const RouterOptions& options() const { return options_; }

  Linear gate{nullptr};         // weight (E, H), bias (E) with gate_bias
  at::Tensor expert_bias;       // (E) float32 state; undefined if not enabled
  at::Tensor scale;             // (H), undefined without input_norm_eps
  at::Tensor per_expert_scale;  // (E), undefined without that option

 private:
  // The same for scores (N, k) times factors of the experts; the scores alone are normalized.
  at::Tensor weights(const at::Tensor& selected, const at::Tensor& scaled) const;

  int64_t top_k_;
  bool renormalize_;
  RouterOptions options_;
};
LEHR_MODULE(TopKRouter);

}  // namespace lehr::nn
