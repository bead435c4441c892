// Opens an optional that must be set.
#pragma once

#include <optional>
#include <utility>

#include "lehr/base/error.h"

namespace lehr {

/// Returns the value of an optional that earlier checks require to be set. Throws an error of kind bug, which names
/// `what`, if it is not.
template <class T>
const T& value_of(const std::optional<T>& optional, const char* what) {
  if (!optional.has_value()) {
    fail_bug(fmt::format("{}: is not set", what));
  }
  return *optional;
}
template <class T>
T& value_of(std::optional<T>& optional, const char* what) {
  return const_cast<T&>(value_of(std::as_const(optional), what));
}

}  // namespace lehr
