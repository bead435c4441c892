// Grouped matmuls on a GPU by ATen's kernel, for which `ends` stays on the device.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops::cuda {

/// True if there is a grouped matmul for such rows: bfloat16 on a GPU. Others are multiplied group by group.
bool multiplies_groups(const at::Tensor& rows);
/// Returns rows (N, in) times weight (G, out, in) transposed.
at::Tensor grouped_product(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& ends);
/// Returns grad (N, out) times weight.
at::Tensor grouped_input_gradient(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends);
/// Returns, for each group, its rows of grad transposed times its rows of the input: (G, out, in); zeros for groups
/// without rows.
at::Tensor grouped_weight_gradient(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& ends);
/// Adds to each row of output (N, out) its group's row of bias (G, out). Returns output.
at::Tensor add_group_bias_(const at::Tensor& output, const at::Tensor& bias, const at::Tensor& ends);

/// Sets the gradients (G, out, in) of groups without rows to zero: on compute capability 10.0 ATen's kernel does not
/// write them.
void clear_groups_without_rows(const at::Tensor& gradient, const at::Tensor& ends);

}  // namespace lehr::ops::cuda
