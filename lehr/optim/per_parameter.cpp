#include "lehr/optim/per_parameter.h"

#include <ATen/ops/_foreach_div.h>

#include <tuple>

#include "lehr/base/error.h"
#include "lehr/memory/side_stream.h"
#include "lehr/meter/on_meta.h"
#include "lehr/ops/cuda.h"

namespace lehr::optim {
namespace {

void check_pair(const std::string& name, const char* what, const at::Tensor& other, const at::Tensor& value) {
  require(
      other.sizes() == value.sizes() && other.scalar_type() == value.scalar_type() && other.device() == value.device(),
      "{}: its {} is {}, the parameter is {}; they must agree",
      name,
      what,
      describe(other),
      describe(value));
}

void check_value(const std::string& name, const at::Tensor& value) {
  require(
      value.defined() && (!value.is_meta() || runs_on_meta()),
      "{}: the optimizer needs a parameter with storage",
      name);
  const auto dtype = value.scalar_type();
  require(
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16,
      "{}: the optimizer updates float32, float64 and bfloat16, found {}",
      name,
      c10::toString(dtype));
  require(value.is_contiguous(), "{}: the optimizer needs a contiguous parameter, found {}", name, describe(value));
}

void check_placement(const NamedParameter& parameter) {
  const auto& [shape, offset] = parameter.placement;
  const auto dims = static_cast<size_t>(parameter.value.dim());
  bool fits = shape.size() == offset.size() && (shape.empty() || shape.size() == dims);
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = offset[i] >= 0 && offset[i] + parameter.value.size(static_cast<int64_t>(i)) <= shape[i];
  }
  require(fits, "{}: {} does not lie inside the whole parameter", parameter.name, describe(parameter.value));
}

}  // namespace

PerParameterOptimizer::PerParameterOptimizer(
    const OptimizerConfig& config, const std::vector<std::string>& names, std::vector<std::string> state_names)
    : groups_(config, names), state_names_(std::move(state_names)) {}

void PerParameterOptimizer::allocate(const std::vector<NamedParameter>& parameters) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (states_.contains(parameter.name)) {
      continue;
    }
    groups_.group_of(parameter.name);
    check_value(parameter.name, parameter.value);
    check_placement(parameter);
    check_parameter(parameter);
    const at::Tensor value = parameter.value.detach();
    State state{.tensors = {}, .step = at::zeros({}, at::TensorOptions(at::kLong)), .left_out = {}};
    for (size_t i = 0; i < state_names_.size(); ++i) {
      state.tensors.push_back(at::zeros_like(value, value.options().dtype(state_type(value.scalar_type()))));
    }
    states_.emplace(parameter.name, std::move(state));
  }
}

void PerParameterOptimizer::check(const std::vector<NamedParameter>& parameters) const {
  for (const auto& parameter : parameters) {
    if (!parameter.grad.defined()) {
      continue;
    }
    const auto& [name, value, grad, placement] = parameter;
    groups_.group_of(name);
    check_value(name, value);
    check_pair(name, "gradient", grad, value);
    check_placement(parameter);
    check_parameter(parameter);
    const auto it = states_.find(name);
    if (it != states_.end()) {
      for (const auto& tensor : it->second.tensors) {
        require(
            tensor.sizes() == value.sizes() && tensor.scalar_type() == state_type(value.scalar_type()) &&
                tensor.device() == value.device(),
            "{}: its moment is {}, the parameter is {}; they must agree",
            name,
            describe(tensor),
            describe(value));
      }
    }
  }
}

void PerParameterOptimizer::step(const std::vector<NamedParameter>& parameters, const StepOptions& options) {
  const at::NoGradGuard no_grad;
  require(
      !options.found_inf.defined() || takes_found_inf(),
      "found_inf: this optimizer cannot skip a step by itself (takes_found_inf); leave found_inf undefined");
  check(parameters);
  if (needs_step_numbers()) {
    subtract_skipped_steps();
  }
  // The sums of found_inf and earlier skip counts, by the tensor of the latter, which parameters usually share.
  std::map<const void*, at::Tensor> left_out;
  const auto with_this = [&](const at::Tensor& before) {
    at::Tensor& sum = left_out[before.defined() ? before.unsafeGetTensorImpl() : nullptr];
    if (!sum.defined()) {
      const at::Tensor found = options.found_inf.detach().to(at::kFloat).reshape({1});
      sum = before.defined() ? before + found : found.clone();
    }
    return sum;
  };
  std::map<std::tuple<size_t, std::string, at::ScalarType>, std::vector<Item>> buckets;
  for (const auto& parameter : parameters) {
    if (!parameter.grad.defined()) {
      continue;
    }
    allocate({parameter});
    State& state = states_.at(parameter.name);
    const auto key =
        std::tuple(groups_.group_of(parameter.name), parameter.value.device().str(), parameter.value.scalar_type());
    buckets[key].push_back(
        {.parameter = &parameter,
         .value = parameter.value.detach(),
         .grad = parameter.grad.detach().contiguous(),  // fused kernels read raw memory
         .state = state.tensors,
         .step = ++*state.step.data_ptr<int64_t>(),
         .left_out = state.left_out});
    if (options.found_inf.defined()) {
      state.left_out = with_this(state.left_out);
    }
  }
  for (const auto& [key, items] : buckets) {
    update(groups_.groups()[std::get<0>(key)], items, options);
  }
  if (needs_step_numbers() && !left_out.empty()) {
    last_left_out_ = left_out.begin()->second;  // the only one, since earlier ones were subtracted
    last_left_out_on_host_ = AsyncCopy(last_left_out_);
  }
}

std::vector<std::pair<std::string, at::Tensor>> PerParameterOptimizer::state() const {
  subtract_skipped_steps();
  std::vector<std::pair<std::string, at::Tensor>> entries;
  for (const auto& [name, state] : states_) {
    for (size_t i = 0; i < state_names_.size(); ++i) {
      entries.emplace_back(name + "." + state_names_[i], state.tensors[i]);
    }
    entries.emplace_back(name + ".step", state.step);
  }
  return entries;
}

void PerParameterOptimizer::subtract_skipped_steps() const {
  std::map<const void*, int64_t> read;
  for (auto& [name, state] : states_) {
    if (!state.left_out.defined()) {
      continue;
    }
    const auto [known, unread] = read.try_emplace(state.left_out.unsafeGetTensorImpl(), 0);
    if (unread) {
      known->second = state.left_out.is_same(last_left_out_)
                          ? static_cast<int64_t>(*last_left_out_on_host_.wait().const_data_ptr<float>())
                          : state.left_out.to(at::kLong).item<int64_t>();
    }
    *state.step.data_ptr<int64_t>() -= known->second;
  }
  for (auto& [name, state] : states_) {  // kept until here, so that the addresses above stay distinct
    state.left_out = at::Tensor();
  }
}

at::Tensor PerParameterOptimizer::steps_taken(const std::vector<Item>& items) {
  const at::Tensor counted = at::empty({static_cast<int64_t>(items.size())}, at::kFloat);
  bool all = true;
  for (size_t i = 0; i < items.size(); ++i) {
    counted.data_ptr<float>()[i] = static_cast<float>(items[i].step);
    all = all && !items[i].left_out.defined();
  }
  const at::Device device = items.front().value.device();
  at::Tensor taken = to_device_pinned(counted, device);
  if (!all) {
    const at::Tensor none = at::zeros({1}, taken.options());
    std::vector<at::Tensor> left_out;
    for (const Item& item : items) {
      left_out.push_back(item.left_out.defined() ? item.left_out.to(device) : none);
    }
    taken = taken - at::cat(left_out);
  }
  return taken;
}

std::vector<at::Tensor> PerParameterOptimizer::values(const std::vector<Item>& items) {
  std::vector<at::Tensor> list;
  for (const auto& item : items) {
    list.push_back(item.value);
  }
  return list;
}

std::vector<at::Tensor> PerParameterOptimizer::grads(const std::vector<Item>& items) {
  std::vector<at::Tensor> list;
  for (const auto& item : items) {
    list.push_back(item.grad);
  }
  return list;
}

std::vector<at::Tensor> PerParameterOptimizer::states(const std::vector<Item>& items, size_t index) {
  std::vector<at::Tensor> list;
  for (const auto& item : items) {
    list.push_back(item.state[index]);
  }
  return list;
}

std::optional<at::Tensor> PerParameterOptimizer::found_inf(const StepOptions& options) {
  return options.found_inf.defined() ? std::optional(options.found_inf) : std::nullopt;
}

std::optional<at::Tensor> PerParameterOptimizer::grad_scale(
    const std::vector<Item>& items, const StepOptions& options) {
  if (!options.grad_divisor.defined()) {
    return std::nullopt;
  }
  const at::Tensor divisor = options.grad_divisor.detach();
  if (divisor.is_cpu() && !ops::cuda::on_gpu(divisor) && divisor.item<double>() == 1.0) {
    return std::nullopt;  // the usual case: no clipping, so the kernel need not write the gradients back
  }
  const at::Device device = items.front().value.device();
  // The fused kernels take the divisor as float32, which is too coarse for float64 parameters: two meshes whose norms
  // differ in the last bit would then diverge by 1e-7.
  if (items.front().value.scalar_type() == at::kDouble) {
    at::_foreach_div_(grads(items), divisor.to(device, at::kDouble));
    return std::nullopt;
  }
  return divisor.reshape({}).to(device, at::kFloat);
}

}  // namespace lehr::optim
