// Grouped matmuls in float8 for training: the linear layers of experts, with scales that are computed in every call.
#pragma once

#include <tuple>

#include "lehr/ops/grouped_linear/groups.h"
#include "lehr/ops/linear_float8/linear_float8.h"

namespace lehr::ops {

/// Returns the result of `grouped_linear` (same arguments) with the operands of each matmul rounded to float8
/// (ops/float8/float8.h), as in torchao's float8 rowwise training of MoE layers, and sums and results in the input's
/// dtype or wider. A scale is constant along the dimension that is summed:
///
/// - For the output, the input has one scale per row (a token) and each expert's weight one per output feature.
/// - For the input's gradient, the output's gradient has one per row and each expert's weight one per input feature.
/// - For the weight's gradient, each expert has one per output feature and one per input feature, over its own rows of
///   the call. With rowwise_with_gw_hp this matmul is that of grouped_linear.
///
/// Scales of rows and weights do not depend on the other rows, nor on the number of experts per rank. Of the current
/// Float8SplitScope (ops/linear_float8/split_scales.h) only `tokens` is used: it gets the largest elements of all
/// experts, (G (out + in)) float32, even if there are no rows. Bias and its gradient are those of grouped_linear.
///
/// On a GPU at::_scaled_grouped_mm multiplies in bfloat16 (at most 1023 groups), with fast accumulation for the output
/// only, and `ends` stays on the device. On the CPU ops/matmul/matmul.h multiplies the same numbers. Throws a usage
/// error if shapes or dtypes do not match, or on a GPU for sizes that are not multiples of 16, and for other dtypes.
at::Tensor grouped_linear_float8(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& ends,
    const at::Tensor& bias = {},
    Float8Recipe recipe = Float8Recipe::rowwise);

/// The matmuls of grouped_linear_float8 in the current Float8SplitScope, for experts that are computed in parts
/// (ops/grouped_linear/grouped_weight.h). `product` throws the errors for sizes and dtypes on a GPU.
c10::intrusive_ptr<GroupMatmuls> float8_group_matmuls(Float8Recipe recipe);

/// Throws a usage error that begins with `subject` if grouped_linear_float8 cannot run on `device` in that dtype: if
/// the device is neither a CPU nor a GPU, or is a GPU that fails at small matmuls, or the dtype is not bfloat16 there.
void require_grouped_float8(at::Device device, at::ScalarType type, const char* subject);

namespace reference {
/// The definition, without bias: returns output, input's gradient and weight's gradient for rows x (N, in), weight (G,
/// out, in), ends (G) on the host, and the output's gradient g (N, out): linear_float8 of each group.
std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_linear_float8(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& g, Float8Recipe recipe);
}  // namespace reference

}  // namespace lehr::ops
