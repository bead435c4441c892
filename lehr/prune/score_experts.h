// Importance of the experts of an MoE layer, and of the inner channels of each expert.
//
// Results are scores per expert, not an order of experts: upstream (modelopt.torch.prune.importance_hooks) stores the
// expert at each rank, but its expert removal reads these as one score per expert, and so keeps experts other than the
// best.
#pragma once

#include <vector>

#include "lehr/nn/moe.h"
#include "lehr/prune/score_rows.h"

namespace lehr::prune {

/// One call of an MoE layer with N tokens; k experts per token, E experts, hidden size H, inner width I.
struct MoECall {
  at::Tensor tokens;          ///< (N, H), the layer's input.
  at::Tensor output;          ///< (N, H), the layer's output.
  at::Tensor inner;           ///< (N * k, I), inputs of down_proj in the order of ops::sort_by_expert.
  nn::RoutingResult routing;  ///< The routing of all N tokens.
  at::Tensor counted;         ///< (N) bool: the tokens that count; undefined: all.
};

/// Observes the calls of one MoE layer.
class ExpertHook {
 public:
  virtual ~ExpertHook() = default;
  virtual void accumulate(nn::MoELayerImpl& moe_layer, const MoECall& call) = 0;
  /// Returns float64 scores; higher means more important. Throws a usage error if no token was seen, and for values
  /// that are not finite.
  virtual at::Tensor scores() const = 0;
};

/// For each expert e, the loss of removing it, summed over the tokens routed to e and divided by the number of all
/// tokens. The loss is the mean of (y - y')^2 over the hidden size, or 1 - cos(y, y'), where y' is the output if the
/// router decides without e, so that the token goes to its next choice with new weights. Scores are (E); 0 for an
/// expert that gets no token. Upstream sums -cos, which ranks an unused expert above used ones.
///
/// Costs (k + 1) / k times the MoE layer itself.
class RemoveExpertsIndependent : public ExpertHook {
 public:
  enum class Distance { mse, cosine };
  explicit RemoveExpertsIndependent(Distance distance) : distance_(distance) {}
  void accumulate(nn::MoELayerImpl& moe_layer, const MoECall& call) override;
  at::Tensor scores() const override { return losses_.value(); }

 private:
  Distance distance_;
  TokenMean losses_;
};

/// Ranked-choice voting over the router's choices: each token ranks all experts by probability (plus the router's bias,
/// if any) and votes for the first k that remain. The expert with the fewest votes is removed, its voters' next choices
/// get their votes, and so on; an expert without votes is removed before all others (upstream never considers it). The
/// score is the rank of removal, 0 for the first. (E)
///
/// On a tie, the expert with fewer votes in the first count is removed, then the one with the higher index. Keeps
/// bytes_per_token per counted token, and twice that while it counts the votes.
class RankedChoiceVoting : public ExpertHook {
 public:
  void accumulate(nn::MoELayerImpl& moe_layer, const MoECall& call) override;
  at::Tensor scores() const override;

  static int64_t bytes_per_token(int64_t num_experts) { return 2 * num_experts; }

  /// Returns the scores of `ballots` (N, E) int16, experts by falling preference. The first `votes` (k) count.
  static at::Tensor count(const at::Tensor& ballots, int64_t votes);

 private:
  std::vector<at::Tensor> ballots_;  // on the CPU
  at::Tensor probabilities_;         // sum of all probabilities, finite only if each of them is
  int64_t votes_ = 0;
};

/// IndependentChannelContribution of each expert's down_proj over the tokens routed to it: |W_ec| times their mean of
/// |a_ec|. (E, I); 0 for an expert that gets no token.
class IndependentExpertChannelContribution : public ExpertHook {
 public:
  void accumulate(nn::MoELayerImpl& moe_layer, const MoECall& call) override;
  at::Tensor scores() const override;

 private:
  at::Tensor activations_;  // (E, I)
  at::Tensor tokens_;       // (E)
  at::Tensor norms_;        // (E, I)
};

}  // namespace lehr::prune
