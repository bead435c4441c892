// Helpers of the operators' autograd functions.
#pragma once

#include "lehr/base/error.h"
#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns whether a call on these tensors will be differentiated, so that its forward must save tensors for backward.
template <class... Tensors>
bool will_differentiate(const Tensors&... tensors) {
  return at::GradMode::is_enabled() && (tensors.requires_grad() || ...);
}

/// Throws a usage error under create_graph: backward of the fused operators is not differentiable.
inline void refuse_double_backward(const char* name) {
  require(
      !at::GradMode::is_enabled(),
      "{}: its backward pass cannot be differentiated again; call backward without create_graph",
      name);
}

/// Returns "2x3x4", for messages.
inline std::string shape_of(const at::Tensor& tensor) {
  std::string text;
  for (const int64_t size : tensor.sizes()) {
    text += (text.empty() ? "" : "x") + std::to_string(size);
  }
  return text.empty() ? "a scalar" : text;
}

}  // namespace lehr::ops
