// The definition of ops/grouped_linear_float8/grouped_linear_float8.h.
#include "lehr/ops/grouped_linear/groups.h"
#include "lehr/ops/grouped_linear_float8/grouped_linear_float8.h"

namespace lehr::ops::reference {

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_linear_float8(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends, const at::Tensor& g, Float8Recipe recipe) {
  const at::Tensor output = at::zeros_like(g), grad_input = at::zeros_like(x), grad_weight = at::zeros_like(weight);
  for_each_group(ends, x.size(0), [&](int64_t group, int64_t first, int64_t count) {
    const auto [y, dx, dw] =
        reference::linear_float8(x.narrow(0, first, count), weight[group], g.narrow(0, first, count), recipe);
    output.narrow(0, first, count).copy_(y);
    grad_input.narrow(0, first, count).copy_(dx);
    grad_weight[group].copy_(dw);
  });
  return {output, grad_input, grad_weight};
}

}  // namespace lehr::ops::reference
