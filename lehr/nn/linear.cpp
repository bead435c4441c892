#include "lehr/nn/linear.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"
#include "lehr/ops/linear/linear.h"

namespace lehr::nn {

LinearImpl::LinearImpl(int64_t in_features, int64_t out_features, Init init, bool with_bias) {
  declare_parameter("weight", weight, {out_features, in_features}, init);
  if (with_bias) {
    declare_parameter("bias", bias, {out_features}, Init::zeros());
  }
}

LinearImpl::~LinearImpl() {
  if (tied_) {
    tied_->remove_slot(&weight);
  }
}

void LinearImpl::read_weight_from(const ParameterPtr& other) {
  require(
      other->shape() == own_parameter("weight")->shape(),
      "tied weight: expected shape {}, found {}",
      fmt::join(own_parameter("weight")->shape(), "x"),
      fmt::join(other->shape(), "x"));
  drop_parameter("weight");
  tied_ = other;
  tied_->add_slot(&weight);
}

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  const at::Tensor output =
      float8_ ? ops::linear_float8(input, weight, bias, *float8_) : ops::linear(input, weight, bias);
  return adapter_ ? output + adapter_->forward(input) : output;
}

void LinearImpl::set_adapter(const std::string& name, std::shared_ptr<LinearAdapter> adapter) {
  require(!adapter_, "adapter {}: the linear layer already has adapter '{}'", name, adapter_name_);
  adapter_ = register_module(name, std::move(adapter));
  adapter_name_ = name;
}

void LinearImpl::remove_adapter() {
  if (adapter_) {
    unregister_module(adapter_name_);
    adapter_.reset();
  }
}

}  // namespace lehr::nn
