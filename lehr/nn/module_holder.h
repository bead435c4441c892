// Hooked module calls: a call `layer(x)` through its holder runs hooks, by which parallel styles are applied from
// outside.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "lehr/base/torch.h"
#include "lehr/meter/operator_watch.h"

namespace lehr::nn {

/// Wraps a module's forward: it may change the input and the output, run code before and after it, or replace it.
class CallHook {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& input)>;
  virtual ~CallHook() = default;
  /// Returns the result of the call `module(input, ...)`. `forward` runs the module, and the hooks that were added
  /// before this one, with the remaining arguments unchanged.
  virtual at::Tensor call(const at::Tensor& input, const Forward& forward) = 0;
};

/// Like torch::nn::ModuleHolder, but a call runs the module's hooks. Hooks support calls whose first argument and
/// result are tensors; a call of another form throws if the module has hooks.
template <class Contained>
class ModuleHolder : public torch::nn::ModuleHolder<Contained> {
 public:
  using torch::nn::ModuleHolder<Contained>::ModuleHolder;

  template <class First, class... Rest>
  auto operator()(First&& first, Rest&&... rest) const {
    Contained& module = *this->ptr();
    const WatchedCall call(module);
    using Result = decltype(module.forward(first, rest...));
    if constexpr (std::is_same_v<Result, at::Tensor> && std::is_convertible_v<First&&, const at::Tensor&>) {
      if (!module.call_hooks().empty()) {
        return module.call_hooked(first, [&](const at::Tensor& input) { return module.forward(input, rest...); });
      }
    } else {
      module.require_no_hooks();
    }
    return module.forward(std::forward<First>(first), std::forward<Rest>(rest)...);
  }
};

}  // namespace lehr::nn

/// Defines the holder Name of the module NameImpl, like torch's TORCH_MODULE.
#define LEHR_MODULE(Name)                                   \
  class Name : public lehr::nn::ModuleHolder<Name##Impl> {  \
   public:                                                  \
    using lehr::nn::ModuleHolder<Name##Impl>::ModuleHolder; \
    using Impl = Name##Impl;                                \
  }
