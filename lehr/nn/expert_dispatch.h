// Token dispatch to experts and back: the extension point where expert parallelism replaces the exchange of an MoE
// layer.
#pragma once

#include <memory>

#include "lehr/ops/token_permutation/token_permutation.h"

namespace lehr::nn {

class GroupedExperts;

/// The dispatch of one call's tokens.
class ExpertDispatch {
 public:
  virtual ~ExpertDispatch() = default;
  /// Computes this device's `experts` for the token copies that were sent to them, and returns for each token of this
  /// device the sum of its k experts' results, weighted by `probabilities` (N, k) in the results' dtype: (N, H). Waits
  /// for transfers that are still running. Call it once.
  virtual at::Tensor run(const GroupedExperts& experts, const at::Tensor& probabilities) = 0;
};

/// Knows the placement of a layer's experts.
class ExpertDispatcher {
 public:
  virtual ~ExpertDispatcher() = default;
  /// Sorts the choices (N, k) by expert, over the experts of all devices, in the order in which start() sends them.
  /// `counts` of the result are by number of the expert in any case.
  virtual ops::TokenPermutation sort(const at::Tensor& selected_experts, int64_t num_experts) const;
  /// Starts sending tokens (N, H) to their experts. `permutation` is the result of sort(). Computation before
  /// ExpertDispatch::run may overlap the transfer.
  virtual std::unique_ptr<ExpertDispatch> start(
      const at::Tensor& tokens, const ops::TokenPermutation& permutation) const = 0;
};

/// The dispatcher for layers whose experts are all local: nothing is sent.
std::shared_ptr<const ExpertDispatcher> local_expert_dispatcher();

}  // namespace lehr::nn
