// Shape checks that linear and linear_float8 share.
#pragma once

#include "lehr/ops/autograd.h"

namespace lehr::ops {

/// Returns a tensor (..., n) as a matrix (N, n).
inline at::Tensor rows_of(const at::Tensor& tensor) {
  return tensor.reshape({-1, tensor.size(-1)});
}

/// Throws a usage error that begins with `name` unless input is (..., in) and weight (out, in), of one type.
inline void check_linear(const char* name, const at::Tensor& input, const at::Tensor& weight) {
  require(
      weight.dim() == 2 && input.dim() >= 1 && input.size(-1) == weight.size(1) &&
          input.scalar_type() == weight.scalar_type(),
      "{}: expected an input of {} {} in its last dimension, found {} {}",
      name,
      c10::toString(weight.scalar_type()),
      weight.size(-1),
      c10::toString(input.scalar_type()),
      shape_of(input));
}

}  // namespace lehr::ops
