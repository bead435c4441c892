// The tests: what stands behind `is`, as {% if message.content is string %}.
#include <algorithm>

#include "lehr/data/jinja/builtins.h"

namespace lehr::data::jinja {
namespace {

using Check = bool (*)(const Value& input);

template <Check check>
bool plain(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "a test");
  return check(input);
}

using Relation = bool (*)(const Value& input, const Value& other);

template <Relation relation>
bool with(const Value& input, const Arguments& arguments) {
  const Value other = bound(arguments, {"other"}, "a test")[0];
  if (arguments.positional.empty() && arguments.named.empty()) {
    refuse("a test needs something to compare with");
  }
  return relation(input, other);
}

bool is_even(const Value& input) {
  return input.as_integer("even or odd") % 2 == 0;
}

/// Jinja takes everything for a sequence that has a length and an index.
bool is_sequence(const Value& v) {
  return v.is_list() || v.is_string() || v.is_dict() || v.is_undefined();
}

bool divides(const Value& input, const Value& other) {
  const int64_t divisor = other.as_integer("divisibleby");
  if (divisor == 0) {
    refuse("divisibleby: the divisor is zero");
  }
  return divisor == -1 || input.as_integer("divisibleby") % divisor == 0;
}

}  // namespace

Test find_test(std::string_view name) {
  static const std::vector<std::pair<std::string_view, Test>> kTests{
      {"defined", plain<[](const Value& v) { return !v.is_undefined(); }>},
      {"undefined", plain<[](const Value& v) { return v.is_undefined(); }>},
      {"none", plain<[](const Value& v) { return v.is_none(); }>},
      {"string", plain<[](const Value& v) { return v.is_string(); }>},
      {"mapping", plain<[](const Value& v) { return v.is_dict(); }>},
      {"sequence", plain<is_sequence>},
      {"iterable", plain<is_sequence>},
      {"number", plain<[](const Value& v) { return v.is_number(); }>},
      {"integer", plain<[](const Value& v) { return v.is_integer() && !v.is_bool(); }>},
      {"float", plain<[](const Value& v) { return v.is_float(); }>},
      {"boolean", plain<[](const Value& v) { return v.is_bool(); }>},
      {"true", plain<[](const Value& v) { return v.is_bool() && v.truth(); }>},
      {"false", plain<[](const Value& v) { return v.is_bool() && !v.truth(); }>},
      {"callable", plain<[](const Value& v) { return v.get<Value::FunctionPtr>() != nullptr; }>},
      {"even", plain<is_even>},
      {"odd", plain<[](const Value& v) { return !is_even(v); }>},
      {"divisibleby", with<divides>},
      {"in", with<[](const Value& v, const Value& other) { return contains(other, v); }>},
      {"eq", with<equal>},
      {"equalto", with<equal>},
      {"==", with<equal>},
      {"ne", with<[](const Value& v, const Value& other) { return !equal(v, other); }>},
      {"!=", with<[](const Value& v, const Value& other) { return !equal(v, other); }>},
      {"lt", with<less>},
      {"lessthan", with<less>},
      {"gt", with<[](const Value& v, const Value& other) { return less(other, v); }>},
      {"greaterthan", with<[](const Value& v, const Value& other) { return less(other, v); }>},
      {"le", with<[](const Value& v, const Value& other) { return !less(other, v); }>},
      {"ge", with<[](const Value& v, const Value& other) { return !less(v, other); }>}};
  const auto found = std::find_if(kTests.begin(), kTests.end(), [&](const auto& t) { return t.first == name; });
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace lehr::data::jinja
