// Losses that keep a model's experts evenly used and its routers' logits small.
#pragma once

#include <functional>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// How much the losses of the next forward count.
struct RouterLossWeights {
  double load_balancing = 0;  ///< Coefficient of the load-balancing loss; 0: none.
  double z = 0;               ///< Coefficient of the z-loss; 0: none.
  double share = 1;           ///< The forward's share of the step, where a step is cut into several.
};

/// The losses of one forward over all mixtures of a model, shared by them.
///
/// Load balancing (Fedus et al., https://arxiv.org/abs/2101.03961, as transformers computes it without a mask: padding
/// counts like any token): E * sum_e f_e P_e,
/// where over all tokens of all mixtures together f_e is the mean number of a token's choices that are expert e, and
/// P_e the mean probability of e. z-loss (Zoph et al., https://arxiv.org/abs/2202.08906): the mean of
/// logsumexp(logits)^2.
///
/// Neither is added to the model's loss: `attach` hands their gradients to the routers in backward, when the sums over
/// all mixtures are known. So they reach routers whose layer is computed again, and no logits are kept for them.
///
/// Where several ranks hold parts of a forward's tokens, sums over the ranks take the place of this one's
/// (`set_sum_over_ranks`); values are then those of all the tokens, the same on each rank, and gradients are those of
/// this rank's tokens.
class RouterLosses {
 public:
  /// Gives the sum of a tensor over the ranks that hold parts of the same forward's tokens.
  using SumOverRanks = std::function<at::Tensor(const at::Tensor&)>;
  /// From now on, also behind `begin`. Values and gradients then communicate, once a forward, when the first is asked
  /// for: all ranks must ask.
  void set_sum_over_ranks(SumOverRanks sum) { sum_over_ranks_ = std::move(sum); }
  bool sums_over_ranks() const { return static_cast<bool>(sum_over_ranks_); }

  /// Call before a forward that is trained on; without it, and after begin({}), there are no losses.
  void begin(const RouterLossWeights& weights);
  bool active() const { return weights_.load_balancing > 0 || weights_.z > 0; }

  /// Counts one mixture's decisions: logits and probabilities (N, E), counts (E).
  void add(const at::Tensor& logits, const at::Tensor& probabilities, const at::Tensor& counts);
  /// `probabilities`, with the gradients of the losses behind them. `logits` are what they are the softmax of.
  at::Tensor attach(const at::Tensor& probabilities, const at::Tensor& logits);

  /// What was counted in one forward. Where forwards of several microbatches are under way at once, each one's is put
  /// back before its backward.
  struct Forward;
  Forward take();
  void put(const Forward& forward);

  /// For a model in several stages: what was counted so far, as one tensor (2 E + 2) float64, to be added to by the
  /// next stage; and the whole sums, which the last stage has (`packed_totals`), to be set on the ones before.
  /// Undefined if nothing was added.
  at::Tensor packed() const;
  void add_packed(const at::Tensor& packed);
  at::Tensor packed_totals() const;
  void set_totals(const at::Tensor& packed);

  /// The values of the last forward, scalars; undefined if nothing was added.
  at::Tensor load_balancing_loss() const;
  at::Tensor z_loss() const;

  /// For `attach`'s backward: the gradient of the losses with respect to probabilities and to logits.
  at::Tensor probability_gradient(const at::Tensor& like) const;
  at::Tensor logit_gradient(const at::Tensor& logits) const;

 private:
  struct Totals {
    at::Tensor counts;         // (E)
    at::Tensor probabilities;  // (E), sums
    at::Tensor z;              // sum of squared logsumexp
    at::Tensor rows;           // scalar
  };
  // Over the ranks too.
  const Totals& totals() const;
  static at::Tensor pack(const Totals& sums);
  static Totals unpack(const at::Tensor& packed, at::ScalarType type);

  RouterLossWeights weights_;
  SumOverRanks sum_over_ranks_;
  Totals mine_;
  double rows_ = 0;
  mutable Totals totals_;  // undefined until asked for
};

struct RouterLosses::Forward {
  RouterLossWeights weights = {};
  Totals mine = {};
  double rows = 0;
  Totals totals = {};
};

}  // namespace lehr::nn
