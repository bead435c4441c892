// The product with a weight that every linear layer is.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// input weight^T (+ bias), with input (..., in), weight (out, in) and bias (out) or undefined, all of one floating
/// type; the result is (..., out). Each of the three products of a training step (result, input's gradient, weight's
/// gradient) goes to the library that is fast on the CPU at hand (ops/matmul.h). The weight's gradient can wait
/// (ops/weight_gradients.h). Throws a usage error if shapes or types differ.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace lehr::ops
