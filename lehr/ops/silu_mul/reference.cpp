// Reference definition of SwiGLU's gate.
#include <ATen/ops/silu.h>

#include "lehr/ops/silu_mul/silu_mul.h"

namespace lehr::ops::reference {

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  const auto wide = gate.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return (at::silu(gate.to(wide)) * up.to(wide)).to(gate.scalar_type());
}

}  // namespace lehr::ops::reference
