#include "lehr/nn/experts.h"

#include "lehr/ops/grouped_linear.h"
#include "lehr/ops/silu_mul.h"

namespace lehr::nn {

GroupedLinearImpl::GroupedLinearImpl(int64_t num_groups, int64_t in_features, int64_t out_features, Init init) {
  declare_parameter("weight", weight, {num_groups, out_features, in_features}, init);
}

at::Tensor GroupedLinearImpl::forward(const at::Tensor& rows, const at::Tensor& ends) {
  return ops::grouped_linear(rows, weight, ends);
}

GroupedSwiGLUImpl::GroupedSwiGLUImpl(int64_t num_experts, int64_t hidden_size, int64_t intermediate_size, Init init) {
  gate_proj = register_module("gate_proj", GroupedLinear(num_experts, hidden_size, intermediate_size, init));
  up_proj = register_module("up_proj", GroupedLinear(num_experts, hidden_size, intermediate_size, init));
  down_proj = register_module("down_proj", GroupedLinear(num_experts, intermediate_size, hidden_size, init));
}

at::Tensor GroupedSwiGLUImpl::forward(const at::Tensor& rows, const at::Tensor& ends) {
  return down_proj(ops::silu_mul(gate_proj(rows, ends), up_proj(rows, ends)), ends);
}

}  // namespace lehr::nn
