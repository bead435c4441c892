// Linear layer.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns input weight^T (+ bias), for input (..., in), weight (out, in) and bias (out) or undefined, all of one
/// floating type. The result is (..., out). Each of the three matmuls of a training step (forward, dgrad, wgrad) runs
/// in the library that is fastest on this CPU (ops/matmul/matmul.h). Wgrad can be deferred (ops/weight_gradients.h).
/// Throws a usage error if shapes or types differ.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace lehr::ops
