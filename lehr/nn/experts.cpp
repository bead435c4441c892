#include "lehr/nn/experts.h"

#include "lehr/base/error.h"
#include "lehr/nn/relu_squared.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/grouped_linear_float8/grouped_linear_float8.h"
#include "lehr/ops/silu_mul/silu_mul.h"

namespace lehr::nn {

GroupedLinearImpl::GroupedLinearImpl(
    int64_t num_groups, int64_t in_features, int64_t out_features, Init init, bool with_bias) {
  declare_parameter("weight", weight, {num_groups, out_features, in_features}, init);
  if (with_bias) {
    declare_parameter("bias", bias, {num_groups, out_features}, Init::zeros());
  }
}

at::Tensor GroupedLinearImpl::forward(const at::Tensor& rows, const at::Tensor& ends) {
  const at::Tensor output = float8_ ? ops::grouped_linear_float8(rows, weight, ends, bias, *float8_)
                                    : ops::grouped_linear(rows, weight, ends, bias);
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

GroupedExpertsImpl::GroupedExpertsImpl(
    int64_t num_experts, int64_t hidden_size, int64_t intermediate_size, Init init, const ExpertOptions& options)
    : clamp_(options.clamp) {
  require(!options.clamp || !options.relu_squared, "experts: a clamp of the gate needs experts with a gate");
  const auto projection = [&](int64_t in_features, int64_t out_features) {
    return GroupedLinear(num_experts, in_features, out_features, init, options.bias);
  };
  if (clamp_) {
    gate_up_proj = register_module("gate_up_proj", projection(hidden_size, 2 * intermediate_size));
  } else {
    if (!options.relu_squared) {
      gate_proj = register_module("gate_proj", projection(hidden_size, intermediate_size));
    }
    up_proj = register_module("up_proj", projection(hidden_size, intermediate_size));
  }
  down_proj = register_module("down_proj", projection(intermediate_size, hidden_size));
}

at::Tensor GroupedExpertsImpl::forward(const at::Tensor& rows, const at::Tensor& ends) {
  if (clamp_) {
    return down_proj(ops::clamped_swiglu(gate_up_proj(rows, ends), *clamp_), ends);
  }
  if (!gate_proj) {
    return down_proj(relu_squared(up_proj(rows, ends)), ends);
  }
  const at::Tensor gate = gate_proj(rows, ends);  // evaluated first: the order of function arguments is unspecified
  return down_proj(ops::silu_mul(gate, up_proj(rows, ends)), ends);
}

}  // namespace lehr::nn
