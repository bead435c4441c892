// Token dispatch to experts and back: the extension point where expert parallelism replaces the exchange of an MoE
// layer.
#pragma once

#include <memory>

#include "lehr/ops/token_permutation/token_permutation.h"

namespace lehr::nn {

/// The input of this device's experts.
struct ExpertRows {
  at::Tensor rows;  ///< (M, H), token copies sorted by expert.
  at::Tensor ends;  ///< (local experts) int32, as ops::grouped_linear takes them.
};

/// The dispatch of one call's tokens. Call receive, then combine.
class ExpertDispatch {
 public:
  virtual ~ExpertDispatch() = default;
  /// Returns the token copies for this device's experts; waits for transfers that are still running.
  virtual ExpertRows receive() = 0;
  /// Returns the experts' results (M, H), in the order of the received copies, to their tokens: the sum of each token's
  /// k results weighted by `weights` (N, k), which have the results' dtype. The result is (N, H).
  virtual at::Tensor combine(const at::Tensor& results, const at::Tensor& weights) = 0;
};

/// Knows the placement of a layer's experts.
class ExpertDispatcher {
 public:
  virtual ~ExpertDispatcher() = default;
  /// Starts sending tokens (N, H) to their experts. `permutation` sorts the copies by expert, over the experts of all
  /// devices. Computation before `receive` may overlap the transfer.
  virtual std::unique_ptr<ExpertDispatch> start(
      const at::Tensor& tokens, const ops::TokenPermutation& permutation) const = 0;
};

/// The dispatcher for layers whose experts are all local: nothing is sent.
std::shared_ptr<const ExpertDispatcher> local_expert_dispatcher();

}  // namespace lehr::nn
