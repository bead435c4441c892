// Linear layers in float8 for training, with scales that are computed in every call.
#pragma once

#include <tuple>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The matmuls of a linear layer that run in float8 (torchao's names). With x the rows of the input, W the weight (out,
/// in) and g the gradient of the output, the matmuls are x W^T, g W (dgrad) and g^T x (wgrad).
enum class Float8Recipe {
  rowwise,             ///< All three.
  rowwise_with_gw_hp,  ///< The weight's gradient, g^T x, stays in high precision.
};

/// The sizes of a weight must be multiples of this on a GPU.
constexpr int64_t kFloat8Multiple = 16;

/// Returns the result of `linear` with the operands of each matmul rounded to float8 (ops/float8/float8.h), and sums
/// and results in the input's dtype or wider. A scale is constant along the dimension that is summed. For the output, x
/// has one scale per token and W one per output feature. For the input's gradient, g has one per token and W one per
/// input feature. For the weight's gradient, g has one per output feature and x one per input feature, over all tokens
/// of the call. Bias and its gradient are those of `linear`.
///
/// On a GPU of compute capability 8.9 or more at::_scaled_mm multiplies, with fast accumulation for the output only. On
/// the CPU ops/matmul/matmul.h multiplies the same numbers. Throws a usage error if shapes or dtypes do not match, or
/// on a GPU for sizes that are not multiples of 16.
at::Tensor linear_float8(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias = {},
    Float8Recipe recipe = Float8Recipe::rowwise);

/// Throws a usage error that begins with `subject` if linear_float8 cannot run on `device` in that dtype: if the device
/// is neither a CPU nor a GPU, or is a GPU that fails at a small matmul.
void require_float8(at::Device device, at::ScalarType type, const char* subject);

namespace reference {
/// The definition: returns output, input's gradient and weight's gradient for rows x (n, in), weight (out, in) and the
/// output's gradient g (n, out), from the values of reference::round_rows_to_float8.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_float8(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& g, Float8Recipe recipe);
}  // namespace reference

}  // namespace lehr::ops
