// Records which memory ATen's operators read and write on all threads, according to their schemas.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/meter/recorded_inputs.h"

namespace lehr::testing {

struct TensorUse {
  at::Tensor tensor;  ///< Has a storage.
  bool writes;
};

/// While an object lives, OperatorUses ignores this thread's operators.
class NotWatched {
 public:
  NotWatched() { ++depth; }
  ~NotWatched() { --depth; }
  NotWatched(const NotWatched&) = delete;
  NotWatched& operator=(const NotWatched&) = delete;
  static inline thread_local int depth = 0;
};

/// Calls a function before an operator runs, with its inputs, and after it, with the tensors that it allocated. Views
/// do not count as uses. At most one exists per process.
class OperatorUses {
 public:
  /// `only_allocates`: the tensors have no content yet. LibTorch turns an exception of the function into a warning.
  using See = std::function<void(const std::string& name, const std::vector<TensorUse>& uses, bool only_allocates)>;

  explicit OperatorUses(See see) : see_(std::move(see)) {
    active = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&on_begin, &on_end)
                                        .needsInputs(true)
                                        .needsOutputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorUses() {
    at::removeCallback(handle_);
    active = nullptr;
  }
  OperatorUses(const OperatorUses&) = delete;
  OperatorUses& operator=(const OperatorUses&) = delete;

 private:
  struct Context final : at::ObserverContext {
    bool only_allocates = false;
    std::vector<bool> fresh;  // by output
  };

  static void add(std::vector<TensorUse>& uses, const at::Tensor& tensor, bool writes) {
    if (tensor.defined() && tensor.has_storage()) {
      uses.push_back({tensor, writes});
    }
  }
  static void add(std::vector<TensorUse>& uses, const c10::IValue& value, bool writes) {
    if (value.isTensor()) {
      add(uses, value.toTensor(), writes);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        add(uses, tensor, writes);
      }
    }
  }

  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
    const auto schema = NotWatched::depth == 0 && active != nullptr ? function.operator_schema() : std::nullopt;
    if (!schema) {
      return nullptr;
    }
    const std::string name = function.name();
    auto context = std::make_unique<Context>();
    context->only_allocates = name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
    for (const auto& output : schema->returns()) {
      context->fresh.push_back(output.alias_info() == nullptr);
    }
    std::vector<TensorUse> uses;
    const auto inputs = recorded_inputs(function);
    for (size_t i = 0; i < inputs.size() && i < schema->arguments().size(); ++i) {
      const c10::AliasInfo* const alias = schema->arguments()[i].alias_info();
      if (alias == nullptr || alias->isWrite()) {
        add(uses, inputs[i], alias != nullptr);
      }
    }
    if (!context->only_allocates && !uses.empty()) {
      active->see_(name, uses, false);
    }
    return context;
  }

  static void on_end(const at::RecordFunction& function, at::ObserverContext* given) {
    const auto* const context = static_cast<Context*>(given);
    if (context == nullptr || active == nullptr || NotWatched::depth > 0) {
      return;
    }
    std::vector<TensorUse> uses;
    for (size_t i = 0; i < function.outputs().size() && i < context->fresh.size(); ++i) {
      if (context->fresh[i]) {
        add(uses, function.outputs()[i], /*writes=*/true);
      }
    }
    if (!uses.empty()) {
      active->see_(function.name(), uses, context->only_allocates);
    }
  }

  static inline OperatorUses* active = nullptr;
  See see_;
  at::CallbackHandle handle_;
};

}  // namespace lehr::testing
