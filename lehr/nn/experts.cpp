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

at::Tensor GroupedLinearImpl::forward(const at::Tensor& rows, const at::Tensor& ends, GroupPart part) {
  at::Tensor output;
  if (part.weight != nullptr) {
    const at::Tensor added = bias.defined() ? bias.narrow(0, part.first, ends.size(0)) : bias;
    const auto matmuls = float8_ ? ops::float8_group_matmuls(*float8_) : nullptr;
    output = part.weight->product(rows, ends, part.first, added, matmuls);
  } else if (float8_) {
    output = ops::grouped_linear_float8(rows, weight, ends, bias, *float8_);
  } else {
    output = ops::grouped_linear(rows, weight, ends, bias);
  }
  return adapter_ ? output + adapter_->forward(rows, ends, part.first) : output;
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
    : clamp_(options.clamp), gelu_tanh_(options.gelu_tanh) {
  require(!options.clamp || !options.relu_squared, "experts: a clamp of the gate needs experts with a gate");
  require(!options.gelu_tanh || (!options.clamp && !options.relu_squared), "experts: GELU excludes another gate");
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

GroupPart ExpertPart::of(const GroupedLinear& layer) const {
  return weights == nullptr ? GroupPart{} : GroupPart{.weight = &weights->at(layer.get()), .first = first};
}

at::Tensor GroupedExpertsImpl::forward(const at::Tensor& rows, const at::Tensor& ends, ExpertPart part) {
  const auto project = [&](const GroupedLinear& layer, const at::Tensor& input) {
    return layer(input, ends, part.of(layer));
  };
  if (clamp_) {
    return project(down_proj, ops::clamped_swiglu(project(gate_up_proj, rows), *clamp_));
  }
  if (!gate_proj) {
    return project(down_proj, relu_squared(project(up_proj, rows)));
  }
  const at::Tensor gate = project(gate_proj, rows);  // evaluated first: the order of arguments is unspecified
  const at::Tensor up = project(up_proj, rows);
  return project(down_proj, gelu_tanh_ ? at::gelu(gate, "tanh") * up : ops::silu_mul(gate, up));
}

ExpertWeights GroupedExpertsImpl::weights() const {
  ExpertWeights all;
  for (const GroupedLinear& layer : {gate_proj, up_proj, gate_up_proj, down_proj}) {
    if (layer) {
      all.emplace(layer.get(), layer->weight);
    }
  }
  return all;
}

}  // namespace lehr::nn
