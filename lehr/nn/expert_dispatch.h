// The way of tokens to their experts and back: the seam at which expert parallelism joins a mixture.
#pragma once

#include <memory>

#include "lehr/ops/token_permutation.h"

namespace lehr::nn {

/// What the experts of this device work on.
struct ExpertRows {
  at::Tensor rows;  ///< (M, H), sorted by expert.
  at::Tensor ends;  ///< (experts here) int32, as ops::grouped_linear takes them.
};

/// The tokens of one call, on their way. It takes two calls, in this order.
class ExpertDispatch {
 public:
  virtual ~ExpertDispatch() = default;
  /// The rows for the experts of this device; waits for those that are under way.
  virtual ExpertRows receive() = 0;
  /// Brings the experts' results (M, H), in the order of the rows, back to their tokens: the sum of each token's k
  /// results by `weights` (N, k), which are of the results' type. Gives (N, H).
  virtual at::Tensor combine(const at::Tensor& results, const at::Tensor& weights) = 0;
};

/// Knows where the experts of a mixture are.
class ExpertDispatcher {
 public:
  virtual ~ExpertDispatcher() = default;
  /// Sends tokens (N, H) off to their experts. `permutation` sorts the copies by expert, counted over all devices. What
  /// is computed before `receive` may run while rows are under way.
  virtual std::unique_ptr<ExpertDispatch> start(
      const at::Tensor& tokens, const ops::TokenPermutation& permutation) const = 0;
};

/// All experts are here: nothing is sent.
std::shared_ptr<const ExpertDispatcher> local_expert_dispatcher();

}  // namespace lehr::nn
