// How much the input channels of a linear layer matter: those of down_proj are a feed-forward block's inner channels,
// those of o_proj the heads of attention.
//
// The formulas are those of NVIDIA's Model-Optimizer (modelopt.torch.prune.importance_hooks) but for their sums over
// batches: here they are means over tokens, so that how rows are cut into batches changes nothing, padding does not
// count, and everything is summed in float64.
#pragma once

#include <vector>

#include "lehr/prune/score_rows.h"

namespace lehr::prune {

/// What looks at the calls y = W a of one linear layer.
class ChannelHook {
 public:
  virtual ~ChannelHook() = default;
  /// `input` (B, T, I) is a, `weight` (H, I) is W, of any floating type; a bias is of no account. `counted` (B, T) bool
  /// says which tokens count, undefined that all do.
  virtual void accumulate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted = {}) = 0;
  /// One number a channel or head, float64; higher is a part to keep. Throws a usage error if it has seen no token, and
  /// for what is not finite.
  virtual at::Tensor scores() const = 0;
};

/// How many channels to remove after each batch so that all are gone after the last one. With at least as many channels
/// as batches, channels / batches each, and one more in the first ones if that leaves a rest; else the i-th channel
/// (from 1) goes after batch i batches / channels - 1.
std::vector<int64_t> removal_schedule(int64_t channels, int64_t batches);

/// For each token and channel the size of the error in y if that channel goes too, besides the channels `removed` (n)
/// int64:
///
///   sqrt(|s|^2 + 2 a_i (s . W_i) + a_i^2 |W_i|^2 + 1e-8), where s is the sum of W_j a_j over removed j
///
/// inputs (N, I) and weight (H, I) float64; gives (N, I), in which removed channels mean nothing.
at::Tensor errors_of_removal(const at::Tensor& inputs, const at::Tensor& weight, const at::Tensor& removed);

/// Channels go one by one, each time the one whose absence, together with that of those that went before, disturbs y
/// least: the mean over tokens of errors_of_removal. The score is the rank, 0 for the first that goes. Greedy: each
/// batch judges the channels that go after it, so the order of batches matters; their number is given beforehand.
class IterativeChannelContribution : public ChannelHook {
 public:
  IterativeChannelContribution(int64_t channels, int64_t batches);
  /// Throws a usage error for a batch too many.
  void accumulate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted = {}) override;
  /// Throws a usage error before the last batch.
  at::Tensor scores() const override;

 private:
  void remove(int64_t count);

  std::vector<int64_t> schedule_;
  size_t batches_seen_ = 0;
  at::Tensor removed_;  // (n) int64, in the order of removal
  int64_t channels_;
  TokenMean errors_;  // since the last removal
};

/// |W_i| times the mean over tokens of |a_i|: what a channel adds to y, seen by itself.
class IndependentChannelContribution : public ChannelHook {
 public:
  void accumulate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted = {}) override;
  at::Tensor scores() const override;

 private:
  TokenMean activations_;
  at::Tensor norms_;
};

/// sqrt of the sum over rows of (mean over the row's tokens of |a_i|)^2, as Minitron takes it (Muralidharan et al.,
/// https://arxiv.org/abs/2407.14679). Does not look at W.
class L2Norm : public ChannelHook {
 public:
  void accumulate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted = {}) override;
  at::Tensor scores() const override;

 private:
  at::Tensor squares_;
};

/// The mean over tokens of |W_g a_g|, where W_g and a_g are the columns and inputs of all query heads that KV head g
/// serves: channels in `num_key_value_heads` equal parts, one after another.
class IndependentKvHeadContribution : public ChannelHook {
 public:
  explicit IndependentKvHeadContribution(int64_t num_key_value_heads) : heads_(num_key_value_heads) {}
  void accumulate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted = {}) override;
  at::Tensor scores() const override { return contributions_.value(); }

 private:
  int64_t heads_;
  TokenMean contributions_;
};

/// How much a half of a layer turns the residual stream: the mean over tokens of 1 - cos(x, x + f(x)), between what
/// goes in and what comes out. Block influence, which ShortGPT (Men et al., https://arxiv.org/abs/2403.03853) takes for
/// layers, as Minitron does, and He et al. (https://arxiv.org/abs/2406.15786) for attention and feed-forward apart.
class BlockInfluence {
 public:
  /// The residual stream (B, T, H) before and after the half.
  void accumulate(const at::Tensor& before, const at::Tensor& after, const at::Tensor& counted = {});
  /// (1) float64.
  at::Tensor scores() const { return turns_.value(); }

 private:
  TokenMean turns_;
};

}  // namespace lehr::prune
