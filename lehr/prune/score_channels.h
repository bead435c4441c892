// Importance of the input channels of a linear layer: those of down_proj are a feed-forward block's inner channels,
// those of o_proj the heads of attention.
//
// The formulas are those of NVIDIA's Model-Optimizer (modelopt.torch.prune.importance_hooks), except for their sums
// over batches: here they are means over tokens, so the split of sequences into batches does not matter, padding does
// not count, and all sums are in float64.
#pragma once

#include <vector>

#include "lehr/prune/score_rows.h"

namespace lehr::prune {

/// Observes the calls y = W a of one linear layer.
class ChannelHook {
 public:
  virtual ~ChannelHook() = default;
  /// `input` (B, T, I) is a, `weight` (H, I) is W, of any floating dtype; a bias is ignored. `counted` (B, T) bool
  /// selects the tokens that count; undefined: all.
  virtual void accumulate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted = {}) = 0;
  /// Returns one score per channel or head, float64; higher means more important. Throws a usage error if no token was
  /// seen, and for values that are not finite.
  virtual at::Tensor scores() const = 0;
};

/// Returns the number of channels to remove after each batch so that all are removed after the last one. With at least
/// as many channels as batches, it is channels / batches, and one more in the first batches if there is a remainder.
/// Otherwise the i-th channel (from 1) is removed after batch i * batches / channels - 1 (from 0).
std::vector<int64_t> removal_schedule(int64_t channels, int64_t batches);

/// Returns, for each token and channel i, the magnitude of the error in y if channel i is removed in addition to the
/// channels `removed` (n) int64:
///
///   sqrt(|s|^2 + 2 a_i (s . W_i) + a_i^2 |W_i|^2 + 1e-8), where s is the sum of W_j a_j over removed j
///
/// `inputs` (N, I) and `weight` (H, I) are float64; the result is (N, I), and its values for removed channels are
/// meaningless.
at::Tensor errors_of_removal(const at::Tensor& inputs, const at::Tensor& weight, const at::Tensor& removed);

/// Greedy removal: channels are removed one by one, each time the channel whose removal, together with the earlier
/// ones, changes y least, by the mean over tokens of errors_of_removal. The score is the rank, 0 for the first channel
/// removed. Each batch ranks the channels that are removed after it, so the order of batches matters; their number is
/// fixed in advance.
class IterativeChannelContribution : public ChannelHook {
 public:
  IterativeChannelContribution(int64_t channels, int64_t batches);
  /// Throws a usage error for more batches than announced.
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

/// |W_i| times the mean over tokens of |a_i|: the contribution of each channel to y, independent of the others.
class IndependentChannelContribution : public ChannelHook {
 public:
  void accumulate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted = {}) override;
  at::Tensor scores() const override;

 private:
  TokenMean activations_;
  at::Tensor norms_;
};

/// sqrt of the sum over sequences of (mean over the sequence's tokens of |a_i|)^2, as in Minitron (Muralidharan et al.,
/// https://arxiv.org/abs/2407.14679). Does not use W.
class L2Norm : public ChannelHook {
 public:
  void accumulate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted = {}) override;
  at::Tensor scores() const override;

 private:
  at::Tensor squares_;
};

/// The mean over tokens of |W_g a_g|, where W_g and a_g are the columns and inputs of all query heads that KV head g
/// serves: `num_key_value_heads` equal, consecutive parts of the channels.
class IndependentKvHeadContribution : public ChannelHook {
 public:
  explicit IndependentKvHeadContribution(int64_t num_key_value_heads) : heads_(num_key_value_heads) {}
  void accumulate(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& counted = {}) override;
  at::Tensor scores() const override { return contributions_.value(); }

 private:
  int64_t heads_;
  TokenMean contributions_;
};

/// Block influence of a sub-block: the mean over tokens of 1 - cos(x, x + f(x)), with the residual stream x before and
/// x + f(x) after it. ShortGPT (Men et al., https://arxiv.org/abs/2403.03853) and Minitron use it for layers, and He et
/// al. (https://arxiv.org/abs/2406.15786) for attention and feed-forward separately.
class BlockInfluence {
 public:
  /// The residual stream (B, T, H) before and after the sub-block.
  void accumulate(const at::Tensor& before, const at::Tensor& after, const at::Tensor& counted = {});
  /// Returns the score, (1) float64.
  at::Tensor scores() const { return turns_.value(); }

 private:
  TokenMean turns_;
};

}  // namespace lehr::prune
