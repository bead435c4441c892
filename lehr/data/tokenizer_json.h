// Helpers for reading tokenizer.json, with errors that name file and field.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <type_traits>
#include <utility>

#include "lehr/base/error.h"

namespace lehr::data {

/// Returns "file: a.b" for `where` "file: a" and key "b", and "file: b" for `where` "file: ", the top of a file.
inline std::string json_field(const std::string& where, const char* key) {
  return where.ends_with(": ") ? where + key : where + "." + key;
}

/// Returns `node[key]` as T, or `fallback` if it is absent or null. `where` names file and field of `node`.
template <class T>
T json_or(const nlohmann::json& node, const char* key, T fallback, const std::string& where) {
  const auto at = node.find(key);
  if (at == node.end() || at->is_null()) {
    return fallback;
  }
  // nlohmann's conversion of a large number with a fraction to an integer is undefined.
  bool fits = !std::is_integral_v<T> || std::is_same_v<T, bool> || at->is_number_integer();
  T value{};
  try {
    value = fits ? at->get<T>() : T{};
  } catch (const nlohmann::json::exception&) {
    fits = false;
  }
  require(fits, "{}: wrong type of value: {}", json_field(where, key), at->dump(-1, ' ', true).substr(0, 80));
  return value;
}

/// Returns `node[key]` as T; a missing key is a usage error.
template <class T>
T json_at(const nlohmann::json& node, const char* key, const std::string& where) {
  require(node.is_object(), "{}: expected an object, found {}", where, node.type_name());
  require(node.contains(key) && !node[key].is_null(), "{}: is missing", json_field(where, key));
  return json_or<T>(node, key, T{}, where);
}

/// Returns `node[key]`, which must be a list.
inline nlohmann::json json_list_at(const nlohmann::json& node, const char* key, const std::string& where) {
  auto list = json_at<nlohmann::json>(node, key, where);
  require(list.is_array(), "{}: expected a list, found {}", json_field(where, key), list.type_name());
  return list;
}

}  // namespace lehr::data
