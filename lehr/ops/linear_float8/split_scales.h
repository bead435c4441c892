// Scales of float8 operands whose rows are split over ranks.
#pragma once

#include <functional>

#include "lehr/base/call_context.h"
#include "lehr/base/torch.h"

namespace lehr::ops {

/// The split of the operands of a linear layer's matmuls over ranks, or of the experts' (grouped_linear_float8). A
/// scale depends on the largest element of a whole row, so each function replaces numbers by their maximum over the
/// ranks that hold the other parts; all these ranks must call it. Null: this rank holds all.
struct Float8Split : torch::CustomClassHolder {
  using Maximum = std::function<void(const at::Tensor& numbers)>;
  Maximum inputs;   ///< Over input features: the rows of x and of W in the output's matmul.
  Maximum outputs;  ///< Over output features: the rows of g and of the transpose of W in dgrad.
  Maximum tokens;   ///< Over tokens: the rows of the transposes of g and x in wgrad, of each expert.
};

/// While it exists, calls of linear_float8 and grouped_linear_float8 on this thread, and their backward passes, have
/// the split.
class Float8SplitScope {
 public:
  explicit Float8SplitScope(const c10::intrusive_ptr<Float8Split>& split);
  /// The split of this thread's calls; null: none.
  static c10::intrusive_ptr<Float8Split> current();

 private:
  ContextScope<Float8Split*> scope_;
};

}  // namespace lehr::ops
