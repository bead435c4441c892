// The definition of linear layers in float8: rounded operands and ATen's matmul.
#include <ATen/ops/mm.h>

#include "lehr/ops/float8/float8.h"
#include "lehr/ops/linear_float8/linear_float8.h"

namespace lehr::ops::reference {

namespace {
// Returns a b^T, with a scale per row of a and of b.
at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(reference::round_rows_to_float8(a), reference::round_rows_to_float8(b).t());
}
}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_float8(
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& g, Float8Recipe recipe) {
  return {
      product(x, weight),
      product(g, weight.t()),
      recipe == Float8Recipe::rowwise ? product(g.t(), x.t()) : at::mm(g.t(), x)};
}

}  // namespace lehr::ops::reference
