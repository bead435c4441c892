// Reference definition of the rotary embedding.
#include "lehr/ops/rotary/rotary.h"

namespace lehr::ops::reference {

namespace {
// Rotates x (B, T, H, D) by cos and sin (B or 1, T, 1, R), which are in the type of the arithmetic.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style) {
  const int64_t rotated = cos.size(-1);
  const int64_t half = rotated / 2;
  const at::Tensor head = x.narrow(-1, 0, rotated).to(cos.scalar_type());
  at::Tensor turned;
  if (style == RotaryStyle::half) {
    const at::Tensor swapped = at::cat({-head.narrow(-1, half, half), head.narrow(-1, 0, half)}, -1);
    turned = head * cos + swapped * sin;
  } else {
    const at::Tensor even = head.slice(-1, 0, rotated, 2);
    const at::Tensor odd = head.slice(-1, 1, rotated, 2);
    const at::Tensor c = cos.narrow(-1, 0, half);
    const at::Tensor s = sin.narrow(-1, 0, half);
    turned = at::stack({even * c - odd * s, odd * c + even * s}, -1).flatten(-2);
  }
  turned = turned.to(x.scalar_type());
  const int64_t rest = x.size(-1) - rotated;
  return rest == 0 ? turned : at::cat({turned, x.narrow(-1, rotated, rest)}, -1);
}
}  // namespace

std::tuple<at::Tensor, at::Tensor> apply_rotary(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style) {
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor c = cos.detach().to(wide).unsqueeze(-2);
  const at::Tensor s = sin.detach().to(wide).unsqueeze(-2);
  return {rotate(q, c, s, style), k.defined() ? rotate(k, c, s, style) : k};
}

}  // namespace lehr::ops::reference
