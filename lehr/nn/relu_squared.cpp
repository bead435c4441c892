#include "lehr/nn/relu_squared.h"

namespace lehr::nn {

at::Tensor relu_squared(const at::Tensor& x) {
  const at::Tensor positive = x.clamp_min(0);  // ATen's relu has no kernel on meta
  return positive * positive;
}

ReluSquaredMlpImpl::ReluSquaredMlpImpl(int64_t hidden_size, int64_t intermediate_size, Init init) {
  up_proj = register_module("up_proj", Linear(hidden_size, intermediate_size, init));
  down_proj = register_module("down_proj", Linear(intermediate_size, hidden_size, init));
}

at::Tensor ReluSquaredMlpImpl::forward(const at::Tensor& hidden_states) {
  return down_proj(relu_squared(up_proj(hidden_states)));
}

}  // namespace lehr::nn
