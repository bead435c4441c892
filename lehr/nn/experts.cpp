#include "lehr/nn/experts.h"

#include "lehr/base/error.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/silu_mul/silu_mul.h"

namespace lehr::nn {

GroupedLinearImpl::GroupedLinearImpl(int64_t num_groups, int64_t in_features, int64_t out_features, Init init) {
  declare_parameter("weight", weight, {num_groups, out_features, in_features}, init);
}

at::Tensor GroupedLinearImpl::forward(const at::Tensor& rows, const at::Tensor& ends) {
  const at::Tensor output = ops::grouped_linear(rows, weight, ends);
  return adapter_ ? output + adapter_->forward(rows, ends) : output;
}

void GroupedLinearImpl::set_adapter(const std::string& name, std::shared_ptr<GroupedLinearAdapter> adapter) {
  require(!adapter_, "adapter {}: the grouped linear layer already has adapter '{}'", name, adapter_name_);
  adapter_ = register_module(name, std::move(adapter));
  adapter_name_ = name;
}

void GroupedLinearImpl::remove_adapter() {
  if (adapter_) {
    unregister_module(adapter_name_);
    adapter_.reset();
  }
}

GroupedSwiGLUImpl::GroupedSwiGLUImpl(int64_t num_experts, int64_t hidden_size, int64_t intermediate_size, Init init) {
  gate_proj = register_module("gate_proj", GroupedLinear(num_experts, hidden_size, intermediate_size, init));
  up_proj = register_module("up_proj", GroupedLinear(num_experts, hidden_size, intermediate_size, init));
  down_proj = register_module("down_proj", GroupedLinear(num_experts, intermediate_size, hidden_size, init));
}

at::Tensor GroupedSwiGLUImpl::forward(const at::Tensor& rows, const at::Tensor& ends) {
  const at::Tensor gate = gate_proj(rows, ends);  // evaluated first: the order of function arguments is unspecified
  return down_proj(ops::silu_mul(gate, up_proj(rows, ends)), ends);
}

}  // namespace lehr::nn
