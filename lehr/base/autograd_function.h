// The base of autograd functions, in place of torch::autograd::Function.
//
// Each instance of torch's template has a node type of its own, whose code takes a compiler seven seconds per file.
// Here all functions share one node type, which is compiled once.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr {

/// A call of an autograd function, without its type; AutogradFunction::apply makes it.
struct AutogradCall {
  using Backward = torch::autograd::variable_list (*)(
      torch::autograd::AutogradContext*, const torch::autograd::variable_list& grads);

  const char* name;   ///< Of the function's type, for traces and messages.
  Backward backward;  ///< Returns a gradient for each argument of forward, and for each tensor of a list.
  std::vector<at::Tensor> inputs = {};  ///< The arguments that are tensors; those of lists one by one.
  std::vector<bool> is_tensor = {};     ///< For each argument, and each tensor of a list.

  void add(const at::Tensor& tensor) {
    is_tensor.push_back(true);
    inputs.push_back(tensor);
  }
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor && tensor->defined()) {
      add(*tensor);
    } else {
      is_tensor.push_back(false);
    }
  }
  void add(const at::TensorList& tensors) {
    for (const at::Tensor& tensor : tensors) {
      add(tensor);
    }
  }
  template <class Other>
  void add(const Other& /*argument*/) {
    is_tensor.push_back(false);
  }
};

/// Returns the name of a type, such as "lehr::ops::RmsNorm".
std::string type_name(const std::type_info& type);

/// Runs `forward` in an autograd node, which runs call.backward, as torch::autograd::Function::apply does.
torch::autograd::variable_list apply_autograd_function(
    AutogradCall call, const std::function<torch::autograd::variable_list(torch::autograd::AutogradContext*)>& forward);

/// Returns the context of the node of an AutogradFunction, such as an output's grad_fn().
torch::autograd::AutogradContext& autograd_context(torch::autograd::Node& node);

/// Returns the object that forward saved under `key` of saved_data, by c10::IValue::make_capsule.
template <class T>
c10::intrusive_ptr<T> saved_object(const torch::autograd::AutogradContext* ctx, const char* key) {
  return c10::static_intrusive_pointer_cast<T>(ctx->saved_data.at(key).toCapsule());
}

/// Base of an autograd function T, with the contract of torch::autograd::Function:
///
///     struct Twice : AutogradFunction<Twice> {
///       static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t n);  // or a variable_list
///       static variable_list backward(AutogradContext* ctx, variable_list grads);  // a gradient per argument
///     };
///     const at::Tensor y = Twice::apply(x, 2);
///
/// Differences: no compiled autograd, and a node's name() does not tell T; in a trace, the work of its backward does.
template <class T>
struct AutogradFunction {
  /// Calls T::forward(ctx, args...) without recording its operators, and returns its outputs, which are differentiable
  /// by T::backward.
  template <class... Args>
  static auto apply(Args&&... args) {
    using torch::autograd::AutogradContext;
    using torch::autograd::variable_list;
    using Outputs = decltype(T::forward(std::declval<AutogradContext*>(), std::forward<Args>(args)...));
    static const std::string name = type_name(typeid(T));
    AutogradCall call{name.c_str(), [](AutogradContext* ctx, const variable_list& grads) -> variable_list {
                        return T::backward(ctx, grads);
                      }};
    (call.add(args), ...);
    variable_list outputs = apply_autograd_function(std::move(call), [&](AutogradContext* ctx) -> variable_list {
      return {T::forward(ctx, std::forward<Args>(args)...)};
    });
    if constexpr (std::is_same_v<Outputs, at::Tensor>) {
      return std::move(outputs.front());
    } else {
      return outputs;
    }
  }
};

}  // namespace lehr
