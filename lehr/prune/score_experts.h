// How much the experts of a mixture matter, and the inner channels of each of them.
//
// Scores, never places in an order: upstream (modelopt.torch.prune.importance_hooks) stores which expert stands at each
// place of the order, and what removes experts reads it as one score an expert, so that it keeps others than the best.
#pragma once

#include <vector>

#include "lehr/nn/moe.h"
#include "lehr/prune/score_rows.h"

namespace lehr::prune {

/// What a mixture did with N tokens; k experts a token, E experts, hidden size H, inner width I.
struct MixtureCall {
  at::Tensor tokens;          ///< (N, H), what went in.
  at::Tensor output;          ///< (N, H), what came out.
  at::Tensor inner;           ///< (N * k, I), inputs of down_proj in the order of ops::sort_by_expert.
  nn::RoutingResult routing;  ///< Of all N tokens.
  at::Tensor counted;         ///< (N) bool: the tokens that count; undefined: all.
};

/// What looks at the calls of one mixture.
class ExpertHook {
 public:
  virtual ~ExpertHook() = default;
  virtual void accumulate(nn::MoELayerImpl& mixture, const MixtureCall& call) = 0;
  /// Float64; higher is a part to keep. Throws a usage error if it has seen no token, and for what is not finite.
  virtual at::Tensor scores() const = 0;
};

/// For each expert e the sum over the tokens that go to e of what they lose if e were not there, over the number of all
/// tokens: of the mean of (y - y')^2 over the hidden size, or of 1 - cos(y, y'). y' is the output when the router
/// decides without e, so that the token goes to its next choice, with new weights. (E); 0 for an expert that no token
/// goes to. Upstream adds up -cos, by which an expert that nobody uses comes out before those that are used.
///
/// Costs (k + 1) / k times the mixture itself, where k of the experts are one token's.
class RemoveExpertsIndependent : public ExpertHook {
 public:
  enum class Distance { mse, cosine };
  explicit RemoveExpertsIndependent(Distance distance) : distance_(distance) {}
  void accumulate(nn::MoELayerImpl& mixture, const MixtureCall& call) override;
  at::Tensor scores() const override { return losses_.value(); }

 private:
  Distance distance_;
  TokenMean losses_;
};

/// The router's choices as votes: each token ranks all experts by probability (with a bias: of their sum), and votes
/// for the first k that are left. The expert with the fewest votes goes, its voters' next choices take its place, and
/// so on; an expert that nobody votes for goes before all others (upstream never considers it). The score is the place
/// in that order, 0 for the first that goes. (E)
///
/// Of experts with as many votes, the one with fewer votes in the first count goes, then the one of higher number.
/// Keeps bytes_a_token of each token that counts, and all of them twice while it counts the votes.
class RankedChoiceVoting : public ExpertHook {
 public:
  void accumulate(nn::MoELayerImpl& mixture, const MixtureCall& call) override;
  at::Tensor scores() const override;

  static int64_t bytes_a_token(int64_t num_experts) { return 2 * num_experts; }

  /// The scores of ballots (N, E) int16, experts by falling rank, of which `votes` count: k.
  static at::Tensor count(const at::Tensor& ballots, int64_t votes);

 private:
  std::vector<at::Tensor> ballots_;  // on the CPU
  at::Tensor probabilities_;         // the sum of all, which is finite if they are
  int64_t votes_ = 0;
};

/// IndependentChannelContribution of each expert's down_proj over the tokens that go to it: |W_ec| times their mean of
/// |a_ec|. (E, I); 0 for an expert that no token goes to.
class IndependentExpertChannelContribution : public ExpertHook {
 public:
  void accumulate(nn::MoELayerImpl& mixture, const MixtureCall& call) override;
  at::Tensor scores() const override;

 private:
  at::Tensor activations_;  // (E, I)
  at::Tensor tokens_;       // (E)
  at::Tensor norms_;        // (E, I)
};

}  // namespace lehr::prune
