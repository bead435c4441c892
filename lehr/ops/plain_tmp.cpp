// Stand-in until each operator's own file takes over.
#include "lehr/ops/attention.h"
#include "lehr/ops/linear_cross_entropy.h"
#include "lehr/ops/norm.h"
#include "lehr/ops/qk_norm_rotary.h"
#include "lehr/ops/reference.h"
#include "lehr/ops/rms_norm.h"
#include "lehr/ops/silu_mul.h"

namespace lehr::ops {
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) { return reference::rms_norm(x, weight, eps); }
std::tuple<at::Tensor, at::Tensor> apply_rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style) {
  return reference::apply_rotary(q, k, cos, sin, style);
}
std::tuple<at::Tensor, at::Tensor> qk_norm_rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& qw, const at::Tensor& kw, double eps, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style) {
  return reference::apply_rotary(reference::rms_norm(q, qw, eps), reference::rms_norm(k, kw, eps), cos, sin, style);
}
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) { return reference::silu_mul(gate, up); }
at::Tensor linear_cross_entropy(const at::Tensor& h, const at::Tensor& w, const at::Tensor& l, int64_t i) {
  return reference::linear_cross_entropy(h, w, l, i);
}
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  return reference::attention(q, k, v, mask);
}
at::Tensor global_norm(const std::vector<at::Tensor>& tensors) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const auto& t : tensors) {
    if (t.defined()) {
      sum = sum.to(t.device()) + t.detach().to(at::kDouble).square().sum();
    }
  }
  return sum.sqrt();
}
void scale_(const std::vector<at::Tensor>& tensors, double factor) {
  for (const auto& t : tensors) {
    if (t.defined()) {
      t.detach().mul_(factor);
    }
  }
}
}  // namespace lehr::ops
