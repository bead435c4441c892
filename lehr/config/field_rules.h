// The rules of fields, applied to their values.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lehr/config/fields.h"
#include "lehr/config/suggest.h"

namespace lehr {

namespace field_rules {
inline std::string number(double value) {
  return fmt::format("{}", value);
}

/// Returns what was expected of a value that breaks the rule, as CheckRule does.
inline std::optional<std::string> broken(const Rule& rule, double value) {
  if (!std::isfinite(value)) {
    return "a finite number";
  }
  const bool low = rule.min_excluded ? value <= rule.min : value < rule.min;
  const bool high = rule.max_excluded ? value >= rule.max : value > rule.max;
  if (!low && !high) {
    return std::nullopt;
  }
  std::vector<std::string> bounds;
  if (std::isfinite(rule.min)) {
    bounds.push_back((rule.min_excluded ? "more than " : "at least ") + number(rule.min));
  }
  if (std::isfinite(rule.max)) {
    bounds.push_back((rule.max_excluded ? "less than " : "at most ") + number(rule.max));
  }
  return bounds.empty() ? "a number" : fmt::format("{}", fmt::join(bounds, " and "));
}

inline std::optional<std::string> broken(const Rule& rule, const std::string& value) {
  if (rule.one_of.empty() || std::find(rule.one_of.begin(), rule.one_of.end(), value) != rule.one_of.end()) {
    return std::nullopt;
  }
  const auto nearest = suggest(value, rule.one_of);
  return fmt::format(
      "one of \"{}\"{}",
      fmt::join(rule.one_of, "\", \""),
      nearest ? fmt::format(" (did you mean \"{}\"?)", *nearest) : "");
}

}  // namespace field_rules

/// Returns what was expected of a value that breaks the rule; nullopt for one that keeps it.
struct CheckRule {
  const Rule& rule;
  std::optional<std::string> operator()(int64_t value) const {
    return field_rules::broken(rule, static_cast<double>(value));
  }
  std::optional<std::string> operator()(double value) const { return field_rules::broken(rule, value); }
  std::optional<std::string> operator()(const std::string& value) const { return field_rules::broken(rule, value); }
  std::optional<std::string> operator()(bool) const { return std::nullopt; }
  std::optional<std::string> operator()(const std::map<std::string, int64_t>& values) const {
    for (const auto& [key, value] : values) {
      if (auto problem = (*this)(value)) {
        return problem;
      }
    }
    return std::nullopt;
  }
  template <class T>
  std::optional<std::string> operator()(const std::optional<T>& value) const {
    return value ? (*this)(*value) : std::nullopt;
  }
  template <class T>
  std::optional<std::string> operator()(const std::vector<T>& values) const {
    for (const auto& value : values) {
      if (auto problem = (*this)(value)) {
        return problem;
      }
    }
    return std::nullopt;
  }
};

}  // namespace lehr
