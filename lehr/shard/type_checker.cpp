#include "lehr/shard/type_checker.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

#include "lehr/base/error.h"

namespace lehr::shard {

TypeChecker::TypeChecker(const mesh::DistributedContext& context, const torch::nn::Module& root) {
  for (size_t axis = 0; axis < kAxes; ++axis) {
    ranks_[axis] = context.size(name_of(axis));
  }
  names_.emplace(&root, "the model");
  for (const auto& entry : root.named_modules("", /*include_self=*/false)) {
    const std::string& name = entry.key();
    names_.emplace(entry.value().get(), name.starts_with('.') ? name.substr(1) : name);
  }
}

void TypeChecker::set(const at::Tensor& tensor, TensorType type, const std::string& parameter) {
  if (!at::isFloatingType(tensor.scalar_type())) {
    for (Kind& kind : type.kinds) {
      kind = kind == Kind::replicate || kind == Kind::invariant ? Kind::constant : kind;
    }
  }
  known_.insert_or_assign(key_of(tensor), Known{tensor, std::move(type), parameter});
}

TensorType TypeChecker::type_of(const at::Tensor& tensor) const {
  const auto found = known_.find(key_of(tensor));
  return found != known_.end() ? found->second.type : constant_type(tensor.sizes());
}

Operand TypeChecker::operand(const at::Tensor& tensor, const std::string& name) const {
  const auto found = known_.find(key_of(tensor));
  const bool parameter = found != known_.end() && !found->second.parameter.empty();
  return {.type = type_of(tensor), .name = parameter ? found->second.parameter : name, .parameter = parameter};
}

AxisSet TypeChecker::axes_of(const std::string& axis) const {
  AxisSet axes = 0;
  for (size_t one = 0; one < kAxes; ++one) {
    const bool part = axis == mesh::axis::fsdp && (one == kDataShards || one == kContext);
    axes |= (name_of(one) == axis || part) && ranks_[one] > 1 ? set_of(one) : AxisSet{0};
  }
  return axes;
}

AxisSet TypeChecker::axes_of(const std::vector<int64_t>& ranks) const {
  AxisSet axes = 0;
  int64_t stride = 1, spanned = 1;
  for (const size_t axis : {kTensor, kContext, kDataShards, kReplicas}) {  // the fastest first
    const auto place = [&](int64_t rank) { return rank / stride % ranks_[axis]; };
    const bool differ =
        std::any_of(ranks.begin(), ranks.end(), [&](int64_t rank) { return place(rank) != place(ranks.front()); });
    if (differ) {
      axes |= set_of(axis);
      spanned *= ranks_[axis];
    }
    stride *= ranks_[axis];
  }
  require(
      ranks.empty() || spanned == static_cast<int64_t>(ranks.size()),
      "works on ranks {}, which are a part of those along {}; there is no rule for that",
      fmt::join(ranks, ", "),
      names_of(axes));
  return axes;
}

void TypeChecker::enter(const torch::nn::Module& module) {
  const auto found = names_.find(&module);
  calls_.push_back(found != names_.end() ? found->second : module.name());
}

void TypeChecker::leave() {
  if (left_by_exception_.empty() && std::uncaught_exceptions() > 0) {
    left_by_exception_ = calls_.back();
  }
  calls_.pop_back();
}

std::string TypeChecker::where() const {
  return !left_by_exception_.empty() ? left_by_exception_ : calls_.empty() ? "the model" : calls_.back();
}

void TypeChecker::fail_at(const std::string& operation, const std::string& message) const {
  fail("plan: {}: {}: {}", where(), operation, message);
}

}  // namespace lehr::shard
