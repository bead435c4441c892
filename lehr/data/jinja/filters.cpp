// The filters: functions after a bar, such as {{ messages | length }}.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "lehr/base/value_of.h"
#include "lehr/data/jinja/builtins.h"
#include "lehr/data/jinja/text.h"

namespace lehr::data::jinja {
namespace {

Value tojson(const Value& input, const Arguments& arguments) {
  const List given = bound(arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}, "tojson");
  JsonStyle style;
  style.ensure_ascii = given[0].truth();
  if (!given[1].is_undefined() && !given[1].is_none()) {
    style.indent = std::clamp<int64_t>(given[1].as_integer("tojson"), 0, 100);
    style.item_separator = ",";
  }
  if (given[2].is_list()) {
    const List separators = given[2].elements("tojson");
    if (separators.size() != 2) {
      refuse("tojson: separators must be two strings");
    }
    style.item_separator = separators[0].as_string("tojson");
    style.key_separator = separators[1].as_string("tojson");
  }
  style.sort_keys = given[3].truth();
  return Value(to_json(input, style));
}

Value length_filter(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "length");
  return Value(length(input));
}

Value trim(const Value& input, const Arguments& arguments) {
  const Value chars = bound(arguments, {"chars"}, "trim")[0];
  const auto set = chars.is_string() ? std::optional(*chars.get<std::string>()) : std::nullopt;
  const std::string text = input.text();
  return Value(strip_right(strip_left(text, set), set));
}

Value default_filter(const Value& input, const Arguments& arguments) {
  const List given = bound(arguments, {"default_value", "boolean"}, "default");
  if (input.is_undefined() || (given[1].truth() && !input.truth())) {
    return given[0].is_undefined() ? Value("") : given[0];
  }
  return input;
}

/// Returns an item, or the value at its attribute path ("a.b").
Value attribute_of(const Value& item, const Value& path) {
  if (path.is_undefined() || path.is_none()) {
    return item;
  }
  if (path.is_integer()) {
    return look_up_item(item, path);
  }
  Value value = item;
  for (const auto& name : split(path.as_string("attribute"), ".")) {
    value = look_up_item(value, Value(name));
  }
  return value;
}

Value join(const Value& input, const Arguments& arguments) {
  const List given = bound(arguments, {"d", "attribute"}, "join");
  std::string out;
  bool first = true;
  for (const Value& item : input.elements("join")) {
    out += (first ? "" : given[0].text()) + attribute_of(item, given[1]).text();
    require_bytes(out.size(), "join");
    first = false;
  }
  return Value(std::move(out));
}

template <Case how>
Value change(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "upper, lower, title or capitalize");
  return Value(change_case(input.text(), how));
}

Value string_filter(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "string");
  return Value(input.text());
}

Value as_is(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "safe");
  return Value(input.text());
}

Value float_filter(const Value& input, const Arguments& arguments) {
  const Value fallback = bound(arguments, {"default"}, "float")[0];
  if (input.is_number()) {
    return Value(input.as_number("float"));
  }
  double value = 0;
  if (input.is_string()) {
    const std::string text = plain_number(*input.get<std::string>());
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) {
      return Value(value);
    }
  }
  return fallback.is_undefined() ? Value(0.0) : fallback;
}

Value int_filter(const Value& input, const Arguments& arguments) {
  const Value fallback = bound(arguments, {"default"}, "int")[0];
  if (input.is_integer()) {
    return Value(input.as_integer("int"));
  }
  if (input.is_string()) {
    const std::string text = plain_number(*input.get<std::string>());
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size()) {
      return Value(value);
    }
  }
  const Value number = float_filter(input, {{Value(std::nan(""))}, {}});  // Jinja converts "3.7" to 3
  const double value = number.as_number("int");
  if (std::abs(value) < 0x1p63) {
    return Value(static_cast<int64_t>(value));
  }
  return fallback.is_undefined() ? Value(int64_t{0}) : fallback;
}

Value absolute(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "abs");
  if (input.is_float()) {
    return Value(std::abs(input.as_number("abs")));
  }
  const int64_t value = input.as_integer("abs");
  return Value(value < 0 ? -std::max(value, -INT64_MAX) : value);
}

Value list_filter(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "list");
  return Value::list(input.elements("list"));
}

Value items_filter(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "items");
  if (input.is_undefined()) {
    return Value::list({});
  }
  if (!input.is_dict()) {
    refuse("items: expected a dict, found {}", input.describe());
  }
  const auto items = find_method(input, "items");
  return (**value_of(items, "jinja: the method items of a dict").get<Value::FunctionPtr>())({});
}

/// The first or last element, without a copy of the others.
Value end_of(const Value& input, const Arguments& arguments, const char* what, bool at_front) {
  bound(arguments, {}, what);
  const auto* sequence = input.get<Value::SequencePtr>();
  const List own = sequence != nullptr ? List{} : input.elements(what);
  const List& items = sequence != nullptr ? (*sequence)->items : own;
  return items.empty() ? Value::undefined(fmt::format("the {} of nothing", what))
         : at_front    ? items.front()
                       : items.back();
}

Value first(const Value& input, const Arguments& arguments) {
  return end_of(input, arguments, "first", /*at_front=*/true);
}

Value last(const Value& input, const Arguments& arguments) {
  return end_of(input, arguments, "last", /*at_front=*/false);
}

Value reverse(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "reverse");
  List items = input.elements("reverse");
  std::reverse(items.begin(), items.end());
  return input.is_string() ? join(Value::list(std::move(items)), {}) : Value::list(std::move(items));
}

Value replace_filter(const Value& input, const Arguments& arguments) {
  const List given = bound(arguments, {"old", "new", "count"}, "replace");
  const int64_t limit = given[2].is_undefined() || given[2].is_none() ? -1 : given[2].as_integer("replace");
  return Value(replace(input.text(), given[0].as_string("replace"), given[1].as_string("replace"), limit));
}

Value dictsort(const Value& input, const Arguments& arguments) {
  bound(arguments, {}, "dictsort, which sorts by key");
  List items = items_filter(input, {}).elements("dictsort");
  const auto key = [](const Value& item) { return change_case(item.elements("dictsort")[0].text(), Case::lower); };
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) { return key(a) < key(b); });
  return Value::list(std::move(items));
}

/// Returns the arguments after the first `count`.
Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

/// map("filter", ...) and map(attribute="name", default=...)
Value map(const Value& input, const Arguments& arguments) {
  List mapped;
  if (arguments.positional.empty()) {
    const List given = bound(arguments, {"attribute", "default"}, "map");
    for (const Value& item : input.elements("map")) {
      const Value value = attribute_of(item, given[0]);
      mapped.push_back(value.is_undefined() && !given[1].is_undefined() ? given[1] : value);
    }
    return Value::list(std::move(mapped));
  }
  const std::string& name = arguments.positional.front().as_string("map");
  const Filter filter = find_filter(name);
  if (filter == nullptr) {
    refuse("map: the filter '{}' is not supported", name);
  }
  for (const Value& item : input.elements("map")) {
    mapped.push_back(filter(item, rest_of(arguments, 1)));
  }
  return Value::list(std::move(mapped));
}

/// select, reject, selectattr and rejectattr: the items for which a test is true, or false.
template <bool wanted, bool of_attribute>
Value choose(const Value& input, const Arguments& arguments) {
  const size_t before = of_attribute ? 1 : 0;
  if (arguments.positional.size() < before) {
    refuse("selectattr and rejectattr: expected the name of an attribute");
  }
  const bool tested = arguments.positional.size() > before;
  const std::string name = tested ? arguments.positional[before].as_string("the name of a test") : "";
  const Test test = tested ? find_test(name) : nullptr;
  if (tested && test == nullptr) {
    refuse("the test '{}' is not supported", name);
  }
  List chosen;
  for (const Value& item : input.elements("select")) {
    const Value judged = of_attribute ? attribute_of(item, arguments.positional.front()) : item;
    const bool holds = tested ? test(judged, rest_of(arguments, before + 1)) : judged.truth();
    if (holds == wanted) {
      chosen.push_back(item);
    }
  }
  return Value::list(std::move(chosen));
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const std::vector<std::pair<std::string_view, Filter>> kFilters{
      {"tojson", tojson},
      {"length", length_filter},
      {"count", length_filter},
      {"trim", trim},
      {"default", default_filter},
      {"d", default_filter},
      {"join", join},
      {"upper", change<Case::upper>},
      {"lower", change<Case::lower>},
      {"title", change<Case::filter_title>},
      {"capitalize", change<Case::capitalized>},
      {"string", string_filter},
      {"safe", as_is},
      {"int", int_filter},
      {"float", float_filter},
      {"abs", absolute},
      {"list", list_filter},
      {"items", items_filter},
      {"dictsort", dictsort},
      {"first", first},
      {"last", last},
      {"reverse", reverse},
      {"replace", replace_filter},
      {"map", map},
      {"select", choose<true, false>},
      {"reject", choose<false, false>},
      {"selectattr", choose<true, true>},
      {"rejectattr", choose<false, true>}};
  const auto found = std::find_if(kFilters.begin(), kFilters.end(), [&](const auto& f) { return f.first == name; });
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace lehr::data::jinja
