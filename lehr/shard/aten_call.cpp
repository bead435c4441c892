#include "lehr/shard/aten_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::shard {

namespace {
const c10::IValue kNone;

std::string in_words(const std::string& argument) {
  return argument == "self" || argument == "input" ? "its input" : "'" + argument + "'";
}
}  // namespace

AtenCall::AtenCall(TypeChecker& checker, const c10::OperatorHandle& op, std::vector<c10::IValue>& stack)
    : checker_(checker), op_(op), stack_(stack), name_(op.schema().name()) {
  name_ = name_.substr(name_.find("::") + 2);
  if (name_.size() > 1 && name_.back() == '_' && name_[name_.size() - 2] != '_') {
    name_.pop_back();
  }
  const auto& arguments = op.schema().arguments();
  args_.assign(stack.end() - static_cast<long>(arguments.size()), stack.end());
  bool any_known = false;
  const auto add = [&](const at::Tensor& tensor, const std::string& argument) {
    if (tensor.defined()) {
      any_known = any_known || checker.knows(tensor);
      operands_.push_back(checker.operand(tensor, in_words(argument)));
    }
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = args_[i];
    if (value.isTensor()) {
      add(value.toTensor(), arguments[i].name());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        add(tensor, arguments[i].name());
      }
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        add(tensor.value_or(at::Tensor()), arguments[i].name());
      }
    }
  }
  if (!any_known && !name_.starts_with("logical_")) {  // logical operators have no meta kernel: see replace_by
    operands_.clear();
  }
}

const c10::IValue& AtenCall::arg(size_t i) const {
  return i < args_.size() ? args_[i] : kNone;
}

const c10::IValue& AtenCall::arg(const std::string& name) const {
  const auto& arguments = op_.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) {
      return args_[i];
    }
  }
  return kNone;
}

Operand AtenCall::operand(size_t i) const {
  return checker_.operand(arg(i).toTensor(), in_words(op_.schema().arguments()[i].name()));
}

void AtenCall::run() {
  const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::TESTING_ONLY_GenericMode);
  op_.callBoxed(&stack_);
}

void AtenCall::replace_by(at::ScalarType dtype, const TensorType& type) {
  std::vector<int64_t> sizes;
  for (const TypedDim& dim : type.dims) {
    sizes.push_back(size_of(dim));
  }
  const bool in_place = op_.schema().is_mutable();
  const at::Tensor result =
      in_place ? args_[0].toTensor() : at::empty(sizes, at::TensorOptions(at::kMeta).dtype(dtype));
  torch::jit::drop(stack_, args_.size());
  torch::jit::push(stack_, result);
  give(type);
}

size_t AtenCall::num_results() const {
  const size_t returned = op_.schema().returns().size();
  const c10::IValue& last = stack_.back();
  return returned == 1 && last.isTensorList() ? last.toTensorList().size() : returned;
}

at::Tensor AtenCall::result(size_t i) const {
  const size_t returned = op_.schema().returns().size();
  const c10::IValue& first = stack_[stack_.size() - returned];
  return first.isTensorList() ? first.toTensorList().get(i) : stack_[stack_.size() - returned + i].toTensor();
}

std::vector<int64_t> AtenCall::result_sizes(size_t i) const {
  return result(i).sizes().vec();
}

void AtenCall::give(TensorType type, size_t i) {
  const at::Tensor tensor = result(i);
  bool fits = type.dims.size() == static_cast<size_t>(tensor.dim());
  for (size_t dim = 0; fits && dim < type.dims.size(); ++dim) {
    fits = size_of(type.dims[dim]) == tensor.size(static_cast<int64_t>(dim));
  }
  invariant(fits, "the typing rule of this operator returns sizes that differ from the result's");
  // A tensor that is made of parameters only, such as a cast or a concatenation, has the name of the first one.
  const bool of_parameters =
      !operands_.empty() && std::ranges::all_of(operands_, [](const Operand& one) { return one.parameter; });
  checker_.set(tensor, std::move(type), of_parameters ? operands_.front().name : std::string());
}

void AtenCall::give_all(const TensorType& type) {
  for (size_t i = 0; i < num_results(); ++i) {
    give(type, i);
  }
}

const AtenRules& aten_rules() {
  static const AtenRules rules = [] {
    AtenRules made;
    add_pointwise_rules(made);
    add_reduction_rules(made);
    add_view_rules(made);
    add_indexing_rules(made);
    return made;
  }();
  return rules;
}

}  // namespace lehr::shard
