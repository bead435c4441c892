// The tests: functions after `is`, as in {% if message.content is string %}.
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
    refuse("a test needs an argument to compare with");
  }
  return relation(input, other);
}

bool is_even(const Value& input) {
  return input.as_integer("even or odd") % 2 == 0;
}

bool is_defined(const Value& v) {
  return !v.is_undefined();
}
bool is_undefined(const Value& v) {
  return v.is_undefined();
}
bool is_none(const Value& v) {
  return v.is_none();
}
bool is_string(const Value& v) {
  return v.is_string();
}
bool is_mapping(const Value& v) {
  return v.is_dict();
}
bool is_number(const Value& v) {
  return v.is_number();
}
bool is_integer(const Value& v) {
  return v.is_integer() && !v.is_bool();
}
bool is_float(const Value& v) {
  return v.is_float();
}
bool is_boolean(const Value& v) {
  return v.is_bool();
}
bool is_true(const Value& v) {
  return v.is_bool() && v.truth();
}
bool is_false(const Value& v) {
  return v.is_bool() && !v.truth();
}
bool is_callable(const Value& v) {
  return v.get<Value::FunctionPtr>() != nullptr;
}
bool is_odd(const Value& v) {
  return !is_even(v);
}
bool is_in(const Value& v, const Value& other) {
  return contains(other, v);
}
bool differ(const Value& v, const Value& other) {
  return !equal(v, other);
}
bool greater(const Value& v, const Value& other) {
  return less(other, v);
}
bool at_most(const Value& v, const Value& other) {
  return !less(other, v);
}
bool at_least(const Value& v, const Value& other) {
  return !less(v, other);
}

/// For Jinja, every value with a length and an index is a sequence.
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
      {"defined", plain<is_defined>},
      {"undefined", plain<is_undefined>},
      {"none", plain<is_none>},
      {"string", plain<is_string>},
      {"mapping", plain<is_mapping>},
      {"sequence", plain<is_sequence>},
      {"iterable", plain<is_sequence>},
      {"number", plain<is_number>},
      {"integer", plain<is_integer>},
      {"float", plain<is_float>},
      {"boolean", plain<is_boolean>},
      {"true", plain<is_true>},
      {"false", plain<is_false>},
      {"callable", plain<is_callable>},
      {"even", plain<is_even>},
      {"odd", plain<is_odd>},
      {"divisibleby", with<divides>},
      {"in", with<is_in>},
      {"eq", with<equal>},
      {"equalto", with<equal>},
      {"==", with<equal>},
      {"ne", with<differ>},
      {"!=", with<differ>},
      {"lt", with<less>},
      {"lessthan", with<less>},
      {"gt", with<greater>},
      {"greaterthan", with<greater>},
      {"le", with<at_most>},
      {"ge", with<at_least>}};
  const auto found = std::find_if(kTests.begin(), kTests.end(), [&](const auto& t) { return t.first == name; });
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace lehr::data::jinja
