// Parts that grouped_linear and grouped_linear_float8 share: arguments, groups of rows, and gradients in high
// precision.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The matmuls of a grouped linear layer in one precision: those in the tensors' dtype, or those in float8
/// (ops/grouped_linear_float8/grouped_linear_float8.h). `ends` are on the host unless the device multiplies groups
/// (cuda.h).
struct GroupMatmuls : torch::CustomClassHolder {
  /// Literals, for errors and traces.
  struct Names {
    const char* op;
    const char* recompute;
    const char* backward;
  };
  virtual Names names() const {
    return {"grouped_linear", "lehr::grouped_linear_again", "lehr::grouped_linear_backward"};
  }

  /// Returns the output of ops/grouped_linear/grouped_linear.h.
  virtual at::Tensor product(
      const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias) const;
  /// Returns the input's gradient (N, in), for grad (N, out).
  virtual at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends) const;
  /// Returns the weight's gradient (G, out, in): for each group, its rows of grad (N, out) transposed times its rows of
  /// the input (N, in). It must not depend on other groups.
  virtual at::Tensor weight_gradient(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& ends) const;
};

/// Throws a usage error that begins with `name` unless the arguments are those of ops/grouped_linear/grouped_linear.h.
void check_grouped_linear(
    const char* name,
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& ends,
    const at::Tensor& bias);

/// Calls `work(group, first row, rows)` for every group that is not empty. `ends` are on the host; on meta `rows` are
/// spread evenly.
template <class Work>
void for_each_group(const at::Tensor& ends, int64_t rows, Work work) {
  if (ends.is_meta()) {
    const int64_t groups = ends.size(0);
    for (int64_t g = 0; g < groups; ++g) {
      if (const int64_t first = rows * g / groups, last = rows * (g + 1) / groups; last > first) {
        work(g, first, last - first);
      }
    }
    return;
  }
  const auto* end = ends.const_data_ptr<int32_t>();
  int64_t begin = 0;
  for (int64_t g = 0; g < ends.size(0); ++g) {
    if (end[g] > begin) {
      work(g, begin, end[g] - begin);
    }
    begin = end[g];
  }
}

/// Returns the weight's gradient, where `product(gradient[g], group, first row, rows)` sets the gradient of a group
/// that is not empty. Not on a GPU.
template <class Product>
at::Tensor weight_gradient_of_groups(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& ends, Product product) {
  at::Tensor gradient = at::empty({ends.size(0), grad.size(1), input.size(1)}, grad.options());
  int64_t filled = 0;
  for_each_group(ends, grad.size(0), [&](int64_t g, int64_t first, int64_t count) {
    gradient.slice(0, filled, g).zero_();  // of the empty groups before
    filled = g + 1;
    product(gradient[g], g, first, count);
  });
  gradient.slice(0, filled).zero_();
  return gradient;
}

/// Return the output and the input's gradient of GroupMatmuls, by a matmul in the tensors' dtype for each group that is
/// not empty. `ends` are on the host.
at::Tensor product_of_groups(
    const at::Tensor& input, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& bias);
at::Tensor input_gradient_of_groups(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& ends);

/// Returns the gradient (G, out) of a bias: the sum of each group's rows of grad.
at::Tensor bias_gradient_of_groups(const at::Tensor& grad, const at::Tensor& ends);

}  // namespace lehr::ops
