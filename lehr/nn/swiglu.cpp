#include "lehr/nn/swiglu.h"

#include "lehr/ops/silu_mul/silu_mul.h"

namespace lehr::nn {

SwiGLUImpl::SwiGLUImpl(int64_t hidden_size, int64_t intermediate_size, Init init) {
  gate_proj = register_module("gate_proj", Linear(hidden_size, intermediate_size, init));
  up_proj = register_module("up_proj", Linear(hidden_size, intermediate_size, init));
  down_proj = register_module("down_proj", Linear(intermediate_size, hidden_size, init));
}

at::Tensor SwiGLUImpl::forward(const at::Tensor& hidden_states) {
  const at::Tensor gate = gate_proj(hidden_states);  // evaluated first: the order of function arguments is unspecified
  return down_proj(ops::silu_mul(gate, up_proj(hidden_states)));
}

}  // namespace lehr::nn
