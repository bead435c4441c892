#include "lehr/train/precision.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>

#include <vector>

#include "lehr/train/config.h"

namespace lehr::train {

namespace {
constexpr int64_t kCopiedTogether = 32 << 20;  // elements of gradients whose two forms exist at the same time
}  // namespace

at::ScalarType parameter_type(const TrainingConfig& config) {
  switch (config.dtype) {
    case Precision::bfloat16:
      return at::kBFloat16;
    case Precision::float64:
      return at::kDouble;
    case Precision::float32:
      break;
  }
  return at::kFloat;
}

at::ScalarType compute_type(const TrainingConfig& config) {
  const auto& narrow = config.mixed_precision_param;
  if (!narrow) {
    return parameter_type(config);
  }
  return *narrow == "bfloat16" ? at::kBFloat16 : *narrow == "float64" ? at::kDouble : at::kFloat;
}

at::ScalarType reduce_type(const TrainingConfig& config) {
  const auto& type = config.mixed_precision_reduce;
  if (!type) {
    return parameter_type(config);
  }
  return *type == "bfloat16" ? at::kBFloat16 : *type == "float64" ? at::kDouble : at::kFloat;
}

MixedPrecision::MixedPrecision(std::vector<nn::NamedParameter> parameters, at::ScalarType compute) {
  for (auto& [name, parameter] : parameters) {
    const at::Tensor& value = parameter->value();
    if (!parameter->is_state() && value.scalar_type() != compute) {
      at::Tensor copy = at::empty_like(value, value.options().dtype(compute)).set_requires_grad(parameter->trainable());
      copies_.push_back({parameter, copy});
      parameter->show(copy);
    }
  }
  refresh();
}

MixedPrecision::~MixedPrecision() {
  for (auto& [parameter, compute] : copies_) {
    parameter->show_value();
  }
}

void MixedPrecision::clear_gradients() {
  for (auto& [parameter, compute] : copies_) {
    compute.mutable_grad().reset();
  }
}

void MixedPrecision::refresh() {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> to, from;
  for (auto& [parameter, compute] : copies_) {
    to.push_back(compute);
    from.push_back(parameter->value());
  }
  if (!to.empty()) {
    at::_foreach_copy_(to, from);
  }
}

void MixedPrecision::collect_gradients() {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> to, from;
  int64_t elements = 0;
  const auto copy = [&] {
    if (!to.empty()) {
      at::_foreach_copy_(to, from);
    }
    to.clear();
    from.clear();
    elements = 0;
  };
  for (auto& [parameter, compute] : copies_) {
    const at::Tensor gradient = compute.grad();
    if (!gradient.defined()) {
      continue;
    }
    at::Tensor value = parameter->value();
    if (value.grad().defined()) {
      value.mutable_grad().add_(gradient);
    } else {
      value.mutable_grad() = at::empty_like(gradient, gradient.options().dtype(value.scalar_type()));
      to.push_back(value.mutable_grad());
      from.push_back(gradient);
      elements += gradient.numel();
    }
    compute.mutable_grad().reset();
    if (elements >= kCopiedTogether) {
      copy();
    }
  }
  copy();
}

}  // namespace lehr::train
