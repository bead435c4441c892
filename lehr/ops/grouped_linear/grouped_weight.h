// Grouped matmuls in parts: the groups of one weight are multiplied a few at a time, as their rows arrive, and the
// weight's gradient is computed once, after all other gradients of the parts.
#pragma once

#include "lehr/base/torch.h"
#include "lehr/ops/grouped_linear/groups.h"

namespace lehr::ops {

/// The weight (G, out, in) of one layer of experts in one forward pass, for matmuls in parts.
///
///     const GroupedWeight weight(parameter);       // before the rows of the first part arrive
///     for (...) {
///       ... = weight.product(rows, ends, first);   // groups first, first + 1, ...
///     }
///
/// In backward, each part computes the gradient of its rows, and keeps the operands of the weight's. That gradient is
/// computed by a node that was created in the constructor, so autograd runs it after all nodes that were created since:
/// the all-to-all of the rows' gradients, started by one of these nodes, overlaps with it. Results are those of
/// grouped_linear. The weight's gradient can be deferred (ops/weight_gradients.h).
class GroupedWeight {
 public:
  explicit GroupedWeight(const at::Tensor& weight);

  /// grouped_linear() of the groups [first, first + ends.size(0)), by the `matmuls` of another precision if they are
  /// not null. `bias`, if defined, has a row for each of these groups. Every group must be in one part; backward must
  /// reach all parts.
  at::Tensor product(
      const at::Tensor& input,
      const at::Tensor& ends,
      int64_t first,
      const at::Tensor& bias = {},
      c10::intrusive_ptr<GroupMatmuls> matmuls = {}) const;

 private:
  c10::intrusive_ptr<torch::CustomClassHolder> operands_;  // of the weight's gradient
  at::Tensor weight_;                                      // the node's output
};

}  // namespace lehr::ops
