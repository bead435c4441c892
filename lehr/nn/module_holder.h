// The call of a module by its holder, `layer(x)`: the seam at which parallel styles join a model from outside.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "lehr/base/operator_watch.h"
#include "lehr/base/torch.h"

namespace lehr::nn {

/// What stands around a module's forward: it may change the input and the output, run what must precede or follow, or
/// do the module's work in another way.
class CallHook {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor& input)>;
  virtual ~CallHook() = default;
  /// Gives what the call `module(input, ...)` gives; `forward` runs the module, and the hooks that were added before
  /// this one, on the further arguments of the call as they are.
  virtual at::Tensor call(const at::Tensor& input, const Forward& forward) = 0;
};

/// As torch::nn::ModuleHolder, but a call runs through the module's hooks. They see calls whose first argument and
/// result are tensors; a module with other calls has no use for hooks, and refuses them at the call.
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

/// Makes the holder Name of the module NameImpl, as torch's TORCH_MODULE does.
#define LEHR_MODULE(Name)                                   \
  class Name : public lehr::nn::ModuleHolder<Name##Impl> {  \
   public:                                                  \
    using lehr::nn::ModuleHolder<Name##Impl>::ModuleHolder; \
    using Impl = Name##Impl;                                \
  }
