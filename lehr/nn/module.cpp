#include "lehr/nn/module.h"

#include <numeric>
#include <unordered_set>

#include "lehr/base/error.h"

namespace lehr::nn {

Parameter::Parameter(std::string name, at::Tensor* slot, std::vector<int64_t> shape, Init init)
    : name_(std::move(name)), slots_{slot}, shape_(std::move(shape)), box_(whole_box(shape_)), init_(init) {
  set_value(at::empty(shape_, at::TensorOptions().device(at::kMeta).dtype(at::kFloat)));
}

int64_t Parameter::numel() const {
  return std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<>());
}

void Parameter::lay_out(const std::string& axis, Placement placement, int64_t index, int64_t count) {
  require(value_.is_meta(), "parameter {}: placed on axis {} after memory was allocated", name_, axis);
  require(layout_.find(axis) == nullptr, "parameter {}: placed on axis {} twice", name_, axis);
  layout_.set(axis, placement);
  if (placement.kind != Placement::Kind::shard) {
    return;
  }
  const auto dim = static_cast<size_t>(placement.dim);
  require(
      dim < box_.size(), "parameter {}: has {} dimensions, so dimension {} does not exist", name_, box_.size(), dim);
  box_[dim] = chunk(box_[dim], index, count);
  set_value(at::empty(shape_of(box_), value_.options().requires_grad(false)));
}

void Parameter::set_value(at::Tensor value) {
  value_ = std::move(value);
  value_.set_requires_grad(trainable_ && at::isFloatingType(value_.scalar_type()));
  show_value();
}

void Parameter::show(const at::Tensor& tensor) {
  for (at::Tensor* slot : slots_) {
    *slot = tensor;
  }
}

void Parameter::add_slot(at::Tensor* slot) {
  *slot = shown();
  slots_.push_back(slot);
}

void Parameter::remove_slot(at::Tensor* slot) {
  std::erase(slots_, slot);
}

void Parameter::make_state(at::ScalarType dtype) {
  state_dtype_ = dtype;
  trainable_ = false;
  set_value(value_.detach().to(dtype));
}

void Parameter::set_trainable(bool trainable) {
  trainable = trainable && !is_state();
  trainable_ = trainable;
  value_.set_requires_grad(trainable);
  at::Tensor in_use = shown();  // possibly a cast copy
  in_use.set_requires_grad(trainable);
}

namespace {
// The prefix of the names of the child's parameters.
std::string child_prefix(const torch::nn::Module& parent, std::string_view prefix, const std::string& key) {
  const auto* own = dynamic_cast<const Module*>(&parent);
  return own == nullptr || own->names_children() ? std::string(prefix) + key + "." : std::string(prefix);
}

void reset_children(torch::nn::Module& module, const InitContext& context) {
  for (auto& child : module.named_children()) {
    const std::string prefix = child_prefix(module, context.prefix, child.key());
    const InitContext below{.seed = context.seed, .prefix = prefix};
    if (auto* late = dynamic_cast<ModuleLateInit*>(child.value().get())) {
      late->reset_parameters(below);
    } else {
      reset_children(*child.value(), below);
    }
  }
}
}  // namespace

void Module::reset_parameters(const InitContext& context) {
  for (const auto& parameter : own_parameters_) {
    const std::string name = std::string(context.prefix) + parameter->name();
    require(
        !parameter->value().is_meta(),
        "parameter {}: reset_parameters() before memory was allocated; call nn::materialize(model, device, dtype) "
        "first",
        name);
    at::Tensor value = parameter->value().detach();
    fill(value, parameter->init(), context.seed, name, parameter->box(), parameter->shape());
  }
  reset_children(*this, context);
}

at::Tensor Module::call_hooked(const at::Tensor& input, const CallHook::Forward& forward) const {
  CallHook::Forward inner = forward;
  for (const auto& hook : call_hooks_) {
    inner = [hook, inner](const at::Tensor& x) { return hook->call(x, inner); };
  }
  return inner(input);
}

void Module::require_no_hooks() const {
  require(
      call_hooks_.empty(),
      "module {}: a parallel style was attached, but the module's call does not map a tensor to a tensor; attach it to "
      "a module inside",
      name());
}

void Module::drop_module(const std::string& name) {
  const auto found = empty_member_.find(name);
  require(
      found != empty_member_.end(),
      "module {}: has no child '{}' of declare_module, so it cannot drop it",
      this->name(),
      name);
  unregister_module(name);
  found->second();
  empty_member_.erase(found);
}

const ParameterPtr& Module::own_parameter(const std::string& name) const {
  for (const auto& parameter : own_parameters_) {
    if (parameter->name() == name) {
      return parameter;
    }
  }
  std::string known;
  for (const auto& parameter : own_parameters_) {
    known += (known.empty() ? "" : ", ") + parameter->name();
  }
  fail("parameter {}: the module has no such parameter of its own; it has: {}", name, known);
}

ParameterPtr Module::declare_parameter(
    const std::string& name, at::Tensor& slot, std::vector<int64_t> shape, Init init) {
  own_parameters_.push_back(std::make_shared<Parameter>(name, &slot, std::move(shape), init));
  return own_parameters_.back();
}

ParameterPtr Module::declare_state(
    const std::string& name, at::Tensor& slot, std::vector<int64_t> shape, Init init, at::ScalarType dtype) {
  auto declared = declare_parameter(name, slot, std::move(shape), init);
  declared->make_state(dtype);
  return declared;
}

void Module::drop_parameter(const std::string& name) {
  std::erase_if(own_parameters_, [&](const ParameterPtr& parameter) { return parameter->name() == name; });
}

namespace {
void collect(
    const torch::nn::Module& module,
    const std::string& prefix,
    std::unordered_set<const Parameter*>& seen,
    std::vector<NamedParameter>& found) {
  if (const auto* own = dynamic_cast<const Module*>(&module)) {
    for (const auto& parameter : own->own_parameters()) {
      if (seen.insert(parameter.get()).second) {
        found.push_back({prefix + parameter->name(), parameter});
      }
    }
  }
  const auto foreign = module.named_parameters(/*recurse=*/false);
  require(
      foreign.is_empty(),
      "module {}: its parameter '{}' was registered with torch, which Lehr does not shard, save or train; use the "
      "modules of lehr/nn, or declare_parameter()",
      prefix.empty() ? "(root)" : prefix.substr(0, prefix.size() - 1),
      foreign.is_empty() ? "" : foreign.front().key());
  for (const auto& child : module.named_children()) {
    collect(*child.value(), child_prefix(module, prefix, child.key()), seen, found);
  }
}

std::vector<NamedParameter> collect(const torch::nn::Module& root, const std::string& prefix) {
  std::vector<NamedParameter> found;
  std::unordered_set<const Parameter*> seen;
  collect(root, prefix, seen, found);
  return found;
}
}  // namespace

std::vector<NamedParameter> named_parameters(const torch::nn::Module& root, const std::string& prefix) {
  auto found = collect(root, prefix);
  std::erase_if(found, [](const NamedParameter& one) { return one.parameter->is_copy(); });
  return found;
}

std::vector<NamedParameter> named_copies(const torch::nn::Module& root) {
  auto found = collect(root, "");
  std::erase_if(found, [](const NamedParameter& one) { return !one.parameter->is_copy(); });
  return found;
}

int64_t count_parameters(const torch::nn::Module& root) {
  int64_t count = 0;
  for (const auto& [name, parameter] : named_parameters(root)) {
    count += parameter->is_state() ? 0 : parameter->numel();
  }
  return count;
}

void materialize(torch::nn::Module& root, at::Device device, at::ScalarType dtype) {
  for (const auto& [name, parameter] : collect(root, "")) {
    if (parameter->value().is_meta()) {
      parameter->set_value(
          at::empty(shape_of(parameter->box()), at::TensorOptions().device(device).dtype(parameter->dtype_in(dtype))));
    }
  }
}

}  // namespace lehr::nn
