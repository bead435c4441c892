// Optional values of a config.json; absent and null are equivalent.
#pragma once

#include <optional>
#include <string>

#include "lehr/config/node.h"

namespace lehr::model {

/// Return the value under `key`, or `otherwise`. Throw a usage error that names the key for a value of another type.
inline int64_t int_or(const Node& config, const std::string& key, int64_t otherwise) {
  const Node* found = config.find(key);
  return found != nullptr && !found->is_null() ? found->as_int() : otherwise;
}

inline double double_or(const Node& config, const std::string& key, double otherwise) {
  const Node* found = config.find(key);
  return found != nullptr && !found->is_null() ? found->as_double() : otherwise;
}

inline bool bool_or(const Node& config, const std::string& key, bool otherwise) {
  const Node* found = config.find(key);
  return found != nullptr && !found->is_null() ? found->as_bool() : otherwise;
}

/// Return the value under `key`, or nullopt. Throw like the functions above.
inline std::optional<double> optional_double(const Node& config, const std::string& key) {
  const Node* found = config.find(key);
  return found != nullptr && !found->is_null() ? std::optional(found->as_double()) : std::nullopt;
}

inline std::optional<int64_t> optional_int(const Node& config, const std::string& key) {
  const Node* found = config.find(key);
  return found != nullptr && !found->is_null() ? std::optional(found->as_int()) : std::nullopt;
}

/// Returns the number, or null if there is none: the inverse of optional_int.
inline Node number_or_null(const std::optional<int64_t>& number) {
  return number ? Node(*number) : Node();
}

}  // namespace lehr::model
