// The product with a weight in float8, as training does it: all scales are found anew at every call.
#pragma once

#include <tuple>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Which products of a linear layer are in float8 (torchao's names). With x the rows of the input, W the weight (out,
/// in) and g the gradient of the result, these are x W^T, g W and g^T x.
enum class Float8Recipe {
  rowwise,             ///< All three.
  rowwise_with_gw_hp,  ///< The weight's gradient, g^T x, stays in high precision.
};

/// Sizes of a weight must be multiples of this on a GPU.
constexpr int64_t kFloat8Multiple = 16;

/// As `linear`, with the operands of each product rounded to float8 (ops/float8.h), and sums and result in the
/// input's type or wider. A scale is constant along what is summed: x has one a token and W one an output for the
/// result; g one a token and W one an input for the input's gradient; g one an output and x one an input, over all
/// tokens of the call, for the weight's. Bias and its gradient are as in `linear`.
///
/// On a GPU of compute capability 8.9 or more at::_scaled_mm multiplies, with fast accumulation for the result alone;
/// on the CPU ops/matmul.h multiplies the same numbers. Throws a usage error if shapes or types differ, or on a GPU
/// for sizes that are no multiples of 16.
at::Tensor linear_float8(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias = {},
    Float8Recipe recipe = Float8Recipe::rowwise);

/// Throws a usage error that begins with `subject` if linear_float8 cannot run on `device` in that type: what is
/// neither a CPU nor a GPU, and a GPU that fails at a small product.
void require_float8(at::Device device, at::ScalarType type, const char* subject);

namespace reference {
/// The definition: (result, input's gradient, weight's gradient) for rows x (n, in), weight (out, in) and the result's
/// gradient g (n, out), of the numbers that reference::round_rows_to_float8 gives.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_float8(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& g, Float8Recipe recipe);
}  // namespace reference

}  // namespace lehr::ops
