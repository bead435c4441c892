// Softcapping of a language-model head's logits (Gemma 2, https://arxiv.org/abs/2408.00118).
#pragma once

#include <optional>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns cap tanh(logits / cap), differentiable; the logits themselves without a cap.
at::Tensor softcap(const at::Tensor& logits, std::optional<double> cap);

/// Overwrites logits by softcap(logits, cap). Returns the derivative, 1 - tanh(logits / cap)^2, if `gradient` and there
/// is a cap; else an undefined tensor.
at::Tensor softcap_(const at::Tensor& logits, std::optional<double> cap, bool gradient);

/// Throws a usage error that begins with `name` unless the cap, if there is one, is a positive finite number.
void check_softcap(const char* name, std::optional<double> cap);

/// @name Storage of a cap among the saved numbers of an autograd function, where 0 means none
/// @{
inline double saved_softcap(std::optional<double> cap) {
  return cap.value_or(0);
}
inline std::optional<double> softcap_of(double saved) {
  return saved > 0 ? std::optional(saved) : std::nullopt;
}
/// @}

}  // namespace lehr::ops
