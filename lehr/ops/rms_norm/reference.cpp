// Reference definition of RMSNorm.
#include "lehr/ops/rms_norm/rms_norm.h"

namespace lehr::ops::reference {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind) {
  const at::Tensor wide = x.to(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor inverse_rms = (wide.square().mean(-1, true) + eps).rsqrt();
  if (kind == NormWeight::zero_centered) {
    return (wide * inverse_rms * (1 + weight.to(wide.scalar_type()))).to(x.scalar_type());
  }
  return (wide * inverse_rms).to(x.scalar_type()) * weight;
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& hidden_states, const at::Tensor& branch, const at::Tensor& weight, double eps, NormWeight kind) {
  const at::Tensor sum = branch.defined() ? hidden_states + branch : hidden_states;
  return {sum, reference::rms_norm(sum, weight, eps, kind)};
}

}  // namespace lehr::ops::reference
