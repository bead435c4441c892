// Reference definition of gpt-oss's gate.
#include <ATen/ops/clamp.h>

#include "lehr/ops/clamped_swiglu/clamped_swiglu.h"

namespace lehr::ops::reference {

at::Tensor clamped_swiglu(const at::Tensor& gate_up, const SwiGLUClamp& clamp) {
  const auto wide = gate_up.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor pairs = gate_up.to(wide).unflatten(-1, {-1, 2});  // (..., F, 2)
  const at::Tensor gate = at::clamp(pairs.select(-1, 0), std::nullopt, clamp.limit);
  const at::Tensor up = at::clamp(pairs.select(-1, 1), -clamp.limit, clamp.limit);
  return ((up + 1) * gate * at::sigmoid(clamp.alpha * gate)).to(gate_up.scalar_type());
}

}  // namespace lehr::ops::reference
