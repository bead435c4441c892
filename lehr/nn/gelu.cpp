#include "lehr/nn/gelu.h"

namespace lehr::nn {

namespace {
at::Tensor activate(Gelu gelu, const at::Tensor& x) {
  return at::gelu(x, gelu == Gelu::tanh ? "tanh" : "none");
}
}  // namespace

GeluMlpImpl::GeluMlpImpl(const GeluMlpParameters& params) : gelu_(params.gelu) {
  fc1 = register_module("fc1", Linear(params.hidden_size, params.intermediate_size, params.init, params.bias));
  fc2 = register_module("fc2", Linear(params.intermediate_size, params.hidden_size, params.init, params.bias));
}

at::Tensor GeluMlpImpl::forward(const at::Tensor& hidden_states) {
  return fc2(activate(gelu_, fc1(hidden_states)));
}

GeGLUImpl::GeGLUImpl(int64_t hidden_size, int64_t intermediate_size, Gelu gelu, Init init) : gelu_(gelu) {
  gate_proj = register_module("gate_proj", Linear(hidden_size, intermediate_size, init));
  up_proj = register_module("up_proj", Linear(hidden_size, intermediate_size, init));
  down_proj = register_module("down_proj", Linear(intermediate_size, hidden_size, init));
}

at::Tensor GeGLUImpl::forward(const at::Tensor& hidden_states) {
  // Evaluated first, in a statement of its own: the order of operands is unspecified.
  const at::Tensor gate = activate(gelu_, gate_proj(hidden_states));
  return down_proj(gate * up_proj(hidden_states));
}

}  // namespace lehr::nn
