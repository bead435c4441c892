// Auxiliary losses of MoE routers: load balancing and z-loss.
#pragma once

#include <functional>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// Weights of the router losses of the next forward.
struct RouterLossWeights {
  double load_balancing = 0;  ///< Coefficient of the load-balancing loss; 0: none.
  double z = 0;               ///< Coefficient of the z-loss; 0: none.
  double share = 1;           ///< The forward's share of the step, if a step has several micro-batches.
};

/// The router losses of one forward over all MoE layers of a model, which share this object.
///
/// Load balancing (Fedus et al., https://arxiv.org/abs/2101.03961) as transformers computes it: E * sum_e f_e P_e,
/// where, over all tokens of all MoE layers together, f_e is the mean number of a token's choices that are expert e,
/// and P_e the mean probability of e. z-loss (Zoph et al., https://arxiv.org/abs/2202.08906): the mean of
/// logsumexp(logits)^2. Padding is in neither, if `set_token_mask` tells where it is.
///
/// Neither is added to the model's loss: `attach` adds their gradients to those of the routers in backward, when the
/// sums over all MoE layers are known. So recomputed layers get them too, and no logits are stored for them.
///
/// If several ranks hold parts of a forward's tokens, sums over the ranks replace those of this rank
/// (`set_sum_over_ranks`); values are then those of all tokens, the same on each rank, and gradients are those of this
/// rank's tokens.
class RouterLosses {
 public:
  /// Returns the sum of a tensor over the ranks that hold parts of the same forward's tokens.
  using SumOverRanks = std::function<at::Tensor(const at::Tensor&)>;
  /// From now on, even after `begin`, sums are over ranks. Values and gradients then communicate, once per forward,
  /// when the first of them is requested: all ranks must request one.
  void set_sum_over_ranks(SumOverRanks sum) { sum_over_ranks_ = std::move(sum); }
  bool sums_over_ranks() const { return static_cast<bool>(sum_over_ranks_); }

  /// Call it before a forward that is trained on; without it, and after begin({}), there are no losses.
  void begin(const RouterLossWeights& weights);
  bool active() const { return weights_.load_balancing > 0 || weights_.z > 0; }

  /// Sets which of the N rows of each following `add` and `attach` are tokens: a bool tensor with N elements, false for
  /// padding; undefined: all are. Until the next `begin`.
  void set_token_mask(const at::Tensor& is_token) { token_mask_ = is_token.defined() ? is_token.flatten() : is_token; }
  /// Returns the number of choices (N, k) of tokens that are expert e, (E) int64; `of_all` (E) are those of all rows.
  at::Tensor count_choices(const at::Tensor& choices, const at::Tensor& of_all) const;

  /// Adds one MoE layer's routing: logits and probabilities (N, E), and the counts of its tokens' choices (E).
  void add(const at::Tensor& logits, const at::Tensor& probabilities, const at::Tensor& counts);
  /// Returns `probabilities`, which must be the softmax of `logits`; backward adds the gradients of the losses.
  at::Tensor attach(const at::Tensor& probabilities, const at::Tensor& logits);

  /// The sums of one forward. If forwards of several micro-batches are in flight, those of a micro-batch are restored
  /// before its backward.
  struct Forward;
  Forward take();
  void put(const Forward& forward);

  /// For a model in several stages: the sums so far, as one tensor (2 E + 2) float64, which the next stage adds to its
  /// own; and the total sums, which the last stage has (`packed_totals`), to be set on the previous stages. Undefined
  /// if nothing was added.
  at::Tensor packed() const;
  void add_packed(const at::Tensor& packed);
  at::Tensor packed_totals() const;
  void set_totals(const at::Tensor& packed);

  /// The values of the last forward, scalars; undefined if nothing was added.
  at::Tensor load_balancing_loss() const;
  at::Tensor z_loss() const;

  /// For `attach`'s backward: the gradients of the losses with respect to the probabilities and the logits.
  at::Tensor probability_gradient(const at::Tensor& like) const;
  at::Tensor logit_gradient(const at::Tensor& logits) const;

 private:
  struct Totals {
    at::Tensor counts;         // (E), summed over layers
    at::Tensor probabilities;  // (E), sums
    at::Tensor z;              // sum of squared logsumexp
    at::Tensor rows;           // scalar
  };
  // The sums, over the ranks that share a forward's tokens.
  const Totals& totals() const;
  at::Tensor rows() const;
  // Rows (N, ...) in which those of padding are zero.
  at::Tensor without_padding(const at::Tensor& rows) const;
  static at::Tensor pack(const Totals& sums);
  static Totals unpack(const at::Tensor& packed, at::ScalarType type);

  RouterLossWeights weights_;
  SumOverRanks sum_over_ranks_;
  Totals mine_;
  double rows_ = 0;
  at::Tensor rows_on_device_;  // float64: of the previous stages, and of layers with a token mask; undefined: none
  at::Tensor token_mask_;      // (N) bool; undefined: all rows are tokens
  mutable Totals totals_;      // undefined until first used
};

/// See take() and put().
struct RouterLosses::Forward {
  RouterLossWeights weights = {};
  Totals mine = {};
  double rows = 0;
  at::Tensor rows_on_device = {};
  at::Tensor token_mask = {};
  Totals totals = {};
};

}  // namespace lehr::nn
