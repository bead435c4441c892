// Attributes and items, the methods of Python's values, and the global functions.
#include <algorithm>
#include <set>

#include "lehr/data/jinja/builtins.h"
#include "lehr/data/jinja/text.h"

namespace lehr::data::jinja {
namespace {

using StringMethod = Value (*)(const std::string& text, const Arguments& arguments);

std::optional<std::string> optional_text(const Value& value, std::string_view what) {
  return value.is_undefined() || value.is_none() ? std::nullopt : std::optional(value.as_string(what));
}

Value list_of(const std::vector<std::string>& texts) {
  List items;
  for (const auto& text : texts) {
    items.emplace_back(text);
  }
  return Value::list(std::move(items));
}

/// Implements startswith and endswith, which take one string or a tuple of strings.
bool any_of(const Arguments& arguments, const char* what, const std::function<bool(const std::string&)>& holds) {
  const Value wanted = bound(arguments, {"text"}, what)[0];
  if (!wanted.is_list()) {
    return holds(wanted.as_string(what));
  }
  const List all = wanted.elements(what);
  return std::any_of(all.begin(), all.end(), [&](const Value& one) { return holds(one.as_string(what)); });
}

Value split_method(const std::string& text, const Arguments& arguments, bool from_right) {
  const List given = bound(arguments, {"sep", "maxsplit"}, "split");
  const auto separator = optional_text(given[0], "split");
  const int64_t limit = given[1].is_undefined() ? -1 : given[1].as_integer("split");
  if (separator) {
    return list_of(from_right ? split_from_right(text, *separator, limit) : split(text, *separator, limit));
  }
  if (from_right && limit >= 0) {
    refuse("rsplit with a limit and without a separator is not supported");
  }
  return list_of(split_at_space(text, limit));
}

Value join_method(const std::string& text, const Arguments& arguments) {
  std::string out;
  bool first = true;
  for (const Value& part : bound(arguments, {"parts"}, "join")[0].elements("join")) {
    out += (first ? "" : text) + part.as_string("join");
    require_bytes(out.size(), "join");
    first = false;
  }
  return Value(std::move(out));
}

const std::vector<std::pair<std::string_view, StringMethod>>& string_methods() {
  static const std::vector<std::pair<std::string_view, StringMethod>> kMethods{
      {"strip",
       [](const std::string& text, const Arguments& arguments) {
         const auto set = optional_text(bound(arguments, {"chars"}, "strip")[0], "strip");
         return Value(strip_right(strip_left(text, set), set));
       }},
      {"lstrip",
       [](const std::string& text, const Arguments& arguments) {
         return Value(strip_left(text, optional_text(bound(arguments, {"chars"}, "lstrip")[0], "lstrip")));
       }},
      {"rstrip",
       [](const std::string& text, const Arguments& arguments) {
         return Value(strip_right(text, optional_text(bound(arguments, {"chars"}, "rstrip")[0], "rstrip")));
       }},
      {"split",
       [](const std::string& text, const Arguments& arguments) { return split_method(text, arguments, false); }},
      {"rsplit",
       [](const std::string& text, const Arguments& arguments) { return split_method(text, arguments, true); }},
      {"startswith",
       [](const std::string& text, const Arguments& arguments) {
         return Value(any_of(arguments, "startswith", [&](const std::string& s) { return text.starts_with(s); }));
       }},
      {"endswith",
       [](const std::string& text, const Arguments& arguments) {
         return Value(any_of(arguments, "endswith", [&](const std::string& s) { return text.ends_with(s); }));
       }},
      {"replace",
       [](const std::string& text, const Arguments& arguments) {
         const List given = bound(arguments, {"old", "new", "count"}, "replace");
         const int64_t limit = given[2].is_undefined() ? -1 : given[2].as_integer("replace");
         return Value(replace(text, given[0].as_string("replace"), given[1].as_string("replace"), limit));
       }},
      {"removeprefix",
       [](const std::string& text, const Arguments& arguments) {
         const std::string prefix = bound(arguments, {"prefix"}, "removeprefix")[0].as_string("removeprefix");
         return Value(text.starts_with(prefix) ? text.substr(prefix.size()) : text);
       }},
      {"removesuffix",
       [](const std::string& text, const Arguments& arguments) {
         const std::string suffix = bound(arguments, {"suffix"}, "removesuffix")[0].as_string("removesuffix");
         return Value(text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text);
       }},
      {"upper", [](const std::string& text, const Arguments&) { return Value(change_case(text, Case::upper)); }},
      {"lower", [](const std::string& text, const Arguments&) { return Value(change_case(text, Case::lower)); }},
      {"title", [](const std::string& text, const Arguments&) { return Value(change_case(text, Case::title)); }},
      {"capitalize",
       [](const std::string& text, const Arguments&) { return Value(change_case(text, Case::capitalized)); }},
      {"join", join_method},
      {"count", [](const std::string& text, const Arguments& arguments) {
         const std::string part = bound(arguments, {"part"}, "count")[0].as_string("count");
         return Value(static_cast<int64_t>(split(text, part).size()) - 1);
       }}};
  return kMethods;
}

// Python methods that are not implemented: a look-up must not return undefined.
bool python_has(const Value& object, std::string_view name) {
  static const std::set<std::string_view> kString{
      "casefold", "center",     "encode",       "expandtabs", "find",    "format",    "format_map", "index",
      "isalnum",  "isalpha",    "isascii",      "isdecimal",  "isdigit", "islower",   "isnumeric",  "isspace",
      "istitle",  "isupper",    "isidentifier", "ljust",      "rjust",   "partition", "rpartition", "rfind",
      "rindex",   "splitlines", "swapcase",     "translate",  "zfill",   "maketrans", "isprintable"};
  static const std::set<std::string_view> kList{
      "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"};
  static const std::set<std::string_view> kDict{"clear", "copy", "fromkeys", "pop", "popitem", "setdefault", "update"};
  return (object.is_string() && kString.count(name) != 0) || (object.is_list() && kList.count(name) != 0) ||
         (object.is_dict() && kDict.count(name) != 0);
}

std::optional<Value> dict_method(const Value& object, const std::string& name) {
  const auto entries = *object.get<Value::DictPtr>();
  if (name == "get") {
    return Value::function([entries](const Arguments& arguments) {
      const List given = bound(arguments, {"key", "default"}, "get");
      const Value* found = given[0].is_string() ? find(*entries, *given[0].get<std::string>()) : nullptr;
      return found != nullptr ? *found : given[1].is_undefined() ? Value::none() : given[1];
    });
  }
  if (name != "items" && name != "keys" && name != "values") {
    return std::nullopt;
  }
  return Value::function([entries, name](const Arguments& arguments) {
    bound(arguments, {}, name);
    List all;
    for (const auto& [key, value] : *entries) {
      all.push_back(
          name == "keys"     ? Value(key)
          : name == "values" ? value
                             : Value::list({Value(key), value}, /*is_tuple=*/true));
    }
    return Value::list(std::move(all));
  });
}

constexpr int64_t kMaxRange = 100000;  // the limit of Jinja's sandbox

Value range(const Arguments& arguments) {
  const List given = bound(arguments, {"start", "stop", "step"}, "range");
  const bool one = given[1].is_undefined();
  const int64_t start = one ? 0 : given[0].as_integer("range");
  const int64_t stop = (one ? given[0] : given[1]).as_integer("range");
  const int64_t step = given[2].is_undefined() ? 1 : given[2].as_integer("range");
  if (step == 0) {
    refuse("range: the step is zero");
  }
  List items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    items.emplace_back(i);
    if (static_cast<int64_t>(items.size()) > kMaxRange) {
      refuse("range: more than {} numbers", kMaxRange);
    }
    if (__builtin_add_overflow(i, step, &i)) {
      break;
    }
  }
  return Value::list(std::move(items));
}

}  // namespace

std::optional<Value> find_method(const Value& object, const std::string& name) {
  if (const std::string* text = object.get<std::string>()) {
    for (const auto& [known, method] : string_methods()) {
      if (known == name) {
        return Value::function(
            [text = *text, call = method](const Arguments& arguments) { return call(text, arguments); });
      }
    }
  } else if (object.is_dict()) {
    if (auto method = dict_method(object, name)) {
      return method;
    }
  }
  if (python_has(object, name)) {
    return Value::function([name, kind = object.describe()](const Arguments&) -> Value {
      refuse("the method '{}' of {} is not supported", name, kind);
    });
  }
  return std::nullopt;
}

Value look_up_attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) {
    refuse("{} has no '{}'", object.describe(), name);
  }
  if (auto method = find_method(object, name)) {
    return *method;
  }
  const Value* found = nullptr;
  if (const auto* dict = object.get<Value::DictPtr>()) {
    found = find(**dict, name);
  } else if (const auto* space = object.get<Value::NamespacePtr>()) {
    found = find((*space)->entries, name);
  }
  return found != nullptr ? *found : Value::undefined(name);
}

Value look_up_item(const Value& object, const Value& key) {
  if (object.is_undefined()) {
    refuse("{} has no '{}'", object.describe(), key.text());
  }
  if (const std::string* name = key.get<std::string>()) {
    if (const auto* dict = object.get<Value::DictPtr>()) {
      if (const Value* found = find(**dict, *name)) {
        return *found;
      }
    }
    return look_up_attribute(object, *name);
  }
  if ((!object.is_list() && !object.is_string()) || !key.is_integer()) {
    return Value::undefined(key.text());
  }
  const int64_t size = length(object);
  const int64_t index = key.as_integer("[]");
  const int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) {
    return Value::undefined(fmt::format("[{}]", index));
  }
  if (const std::string* text = object.get<std::string>()) {
    return Value(middle(*text, static_cast<size_t>(at), 1));
  }
  return (*object.get<Value::SequencePtr>())->items[static_cast<size_t>(at)];
}

const Dict& global_functions() {
  static const Dict kFunctions{
      {"namespace", Value::function([](const Arguments& arguments) {
         if (!arguments.positional.empty()) {
           refuse("namespace: expected entries with names, such as namespace(found=false)");
         }
         return Value::name_space(arguments.named);
       })},
      {"dict", Value::function([](const Arguments& arguments) {
         if (!arguments.positional.empty()) {
           refuse("dict: expected entries with names, such as dict(a=1)");
         }
         return Value::dict(arguments.named);
       })},
      {"range", Value::function(range)},
      {"raise_exception", Value::function([](const Arguments& arguments) -> Value {
         refuse("the template refuses this: {}", bound(arguments, {"message"}, "raise_exception")[0].text());
       })}};
  return kFunctions;
}

List bound(const Arguments& arguments, const std::vector<std::string>& parameters, std::string_view what) {
  if (arguments.positional.size() > parameters.size()) {
    refuse("{}: takes at most {} arguments, found {}", what, parameters.size(), arguments.positional.size());
  }
  List values = arguments.positional;
  for (size_t i = values.size(); i < parameters.size(); ++i) {
    values.push_back(Value::undefined(parameters[i]));
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      refuse("{}: has no argument '{}'", what, name);
    }
    const auto index = static_cast<size_t>(found - parameters.begin());
    if (index < arguments.positional.size()) {
      refuse("{}: the argument '{}' occurs twice", what, name);
    }
    values[index] = value;
  }
  return values;
}

}  // namespace lehr::data::jinja
