#include "lehr/base/toml.h"

#include <cmath>
#include <sstream>

#define TOML_EXCEPTIONS 1
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "lehr/base/error.h"

namespace lehr {

namespace {
Node convert(const toml::node& value, const std::string& name, const std::string& key, int64_t line_offset) {
  Node node;
  if (const auto* flag = value.as_boolean()) {
    node = Node(flag->get());
  } else if (const auto* integer = value.as_integer()) {
    node = Node(integer->get());
  } else if (const auto* number = value.as_floating_point()) {
    node = Node(number->get());
  } else if (const auto* text = value.as_string()) {
    node = Node(text->get());
  } else if (const auto* list = value.as_array()) {
    node = Node::make_list();
    size_t index = 0;
    for (const auto& item : *list) {
      node.push_back(convert(item, name, fmt::format("{}.{}", key, index++), line_offset));
    }
  } else if (const auto* table = value.as_table()) {
    // toml++ sorts keys; readers expect the order of the file.
    std::vector<std::pair<toml::source_position, Node::Table::value_type>> entries;
    for (const auto& [entry, item] : *table) {
      const std::string entry_name(entry.str());
      Node converted = convert(item, name, key.empty() ? entry_name : key + "." + entry_name, line_offset);
      // Messages name the key.
      converted.set_origin(
          {name,
           static_cast<int64_t>(entry.source().begin.line) + line_offset,
           static_cast<int64_t>(entry.source().begin.column)});
      entries.emplace_back(entry.source().begin, std::pair{entry_name, std::move(converted)});
    }
    std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    node = Node::make_table();
    for (auto& [position, entry] : entries) {
      node.set(entry.first, std::move(entry.second));
    }
  } else {
    fail(
        "{}:{}:{}: {}: dates and times are not supported",
        name,
        value.source().begin.line,
        value.source().begin.column,
        key);
  }
  const auto begin = value.source().begin;
  if (node.where().line == 0) {
    node.set_origin({name, static_cast<int64_t>(begin.line) + line_offset, static_cast<int64_t>(begin.column)});
  }
  node.set_key(key);
  return node;
}
}  // namespace

Node parse_toml(std::string_view text, const std::string& name) {
  try {
    return convert(toml::parse(text), name, "", 0);
  } catch (const toml::parse_error& error) {
    fail(
        "{}:{}:{}: invalid TOML: {}",
        name,
        error.source().begin.line,
        error.source().begin.column,
        error.description());
  }
}

std::string toml_value(const Node& node) {
  if (node.is_bool()) {
    return node.as_bool() ? "true" : "false";
  }
  if (node.is_int()) {
    return std::to_string(node.as_int());
  }
  if (node.is_double()) {
    if (!std::isfinite(node.as_double())) {
      return std::isnan(node.as_double()) ? "nan" : node.as_double() > 0 ? "inf" : "-inf";
    }
    std::string text = fmt::format("{}", node.as_double());
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  if (node.is_string()) {
    std::ostringstream quoted;
    quoted << toml::value<std::string>(node.as_string());
    return quoted.str();
  }
  std::string text;
  if (node.is_list()) {
    for (const Node& item : node.items()) {
      text += (text.empty() ? "" : ", ") + toml_value(item);
    }
    return "[" + text + "]";
  }
  for (const auto& [key, value] : node.entries()) {
    text += (text.empty() ? "" : ", ") + key + " = " + toml_value(value);
  }
  return "{" + text + "}";
}

}  // namespace lehr
