#include "lehr/data/jinja/value.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lehr/data/jinja/text.h"
#include "lehr/data/unicode.h"

namespace lehr::data::jinja {
namespace {
constexpr int kMaxJsonDepth = 200;  // each level uses stack space
constexpr size_t kMaxCharacters = 1 << 20;
constexpr size_t kMaxTree = size_t{1} << 30;

void add_element(Value::Size& size, const Value::Size& element) {
  size.own += element.own;
  size.tree += element.tree;
  if (size.tree > kMaxTree) {  // through inner lists that occur many times
    refuse("a list has more than {} bytes", kMaxTree);
  }
  size.depth = std::max(size.depth, element.depth + 1);
}

void require_nesting(int depth) {
  if (depth > kMaxNesting) {
    refuse("lists are nested more than {} deep", kMaxNesting);
  }
}
}  // namespace

Value::Size Value::size_of_element() const {
  if (get<NamespacePtr>() != nullptr) {
    refuse("a namespace cannot be in a list, a dict or another namespace");
  }
  const size_t tree = tree_bytes();
  if (const SequencePtr* sequence = get<SequencePtr>()) {
    return {.own = kBytes, .tree = tree, .depth = (*sequence)->bytes.depth};
  }
  if (const DictPtr* dict = get<DictPtr>()) {
    return {.own = kBytes, .tree = tree, .depth = (*dict)->bytes.depth};
  }
  return {.own = tree, .tree = tree, .depth = 0};
}

size_t Value::own_bytes() const {
  const SequencePtr* sequence = get<SequencePtr>();
  const DictPtr* dict = get<DictPtr>();
  return sequence != nullptr ? (*sequence)->bytes.own : dict != nullptr ? (*dict)->bytes.own : copied_bytes();
}

size_t Value::tree_bytes() const {
  const SequencePtr* sequence = get<SequencePtr>();
  const DictPtr* dict = get<DictPtr>();
  return sequence != nullptr ? (*sequence)->bytes.tree : dict != nullptr ? (*dict)->bytes.tree : copied_bytes();
}

Value Value::undefined(std::string name) {
  Value value;
  value.storage_ = Undefined{std::move(name)};
  return value;
}

Value Value::none() {
  Value value;
  value.storage_ = None{};
  return value;
}

Value Value::list(List items, bool is_tuple) {
  Size size{.own = kBytes, .tree = kBytes};
  for (const Value& item : items) {
    add_element(size, item.size_of_element());
  }
  require_nesting(size.depth);
  Value value;
  value.storage_ = std::make_shared<const Sequence>(Sequence{std::move(items), is_tuple, size});
  return value;
}

Value Value::dict(Dict entries) {
  auto mapping = std::make_shared<Mapping>(std::move(entries));
  mapping->bytes = {.own = kBytes, .tree = kBytes};
  for (const auto& [key, item] : *mapping) {
    mapping->bytes.own += kBytes + key.size();
    mapping->bytes.tree += kBytes + key.size();
    add_element(mapping->bytes, item.size_of_element());
  }
  require_nesting(mapping->bytes.depth);
  Value value;
  value.storage_ = DictPtr(std::move(mapping));
  return value;
}

Value Value::name_space(Dict entries) {
  for (const auto& [key, item] : entries) {
    static_cast<void>(item.size_of_element());
  }
  Value value;
  value.storage_ = std::make_shared<Namespace>(Namespace{std::move(entries)});
  return value;
}

Value Value::function(Function function) {
  Value value;
  value.storage_ = std::make_shared<const Function>(std::move(function));
  return value;
}

Value Value::from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxJsonDepth) {
    refuse("JSON is nested more than {} deep", kMaxJsonDepth);
  }
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        refuse("the integer {} is too large", json.get<uint64_t>());
      }
      return Value(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return Value(json.get<std::string>());
    case nlohmann::ordered_json::value_t::array: {
      List items;
      for (const auto& item : json) {
        items.push_back(from_json(item, depth + 1));
      }
      return list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict entries;
      for (const auto& [key, value] : json.items()) {
        entries.emplace_back(key, from_json(value, depth + 1));
      }
      return dict(std::move(entries));
    }
    default:
      return none();
  }
}

const std::string& Value::as_string(std::string_view what) const {
  if (!is_string()) {
    refuse("{}: expected a string, found {}", what, describe());
  }
  return *get<std::string>();
}

int64_t Value::as_integer(std::string_view what) const {
  if (const bool* value = get<bool>()) {
    return *value ? 1 : 0;
  }
  if (get<int64_t>() == nullptr) {
    refuse("{}: expected an integer, found {}", what, describe());
  }
  return *get<int64_t>();
}

double Value::as_number(std::string_view what) const {
  if (const double* value = get<double>()) {
    return *value;
  }
  if (!is_number()) {
    refuse("{}: expected a number, found {}", what, describe());
  }
  return static_cast<double>(as_integer(what));
}

List Value::elements(std::string_view what) const {
  if (const SequencePtr* sequence = get<SequencePtr>()) {
    return (*sequence)->items;
  }
  List items;
  if (const DictPtr* dict = get<DictPtr>()) {
    for (const auto& [key, value] : **dict) {
      items.emplace_back(key);
    }
  } else if (const std::string* string = get<std::string>()) {
    if (string->size() > kMaxCharacters) {
      refuse("{}: a string of {} bytes is too long to be split into its characters", what, string->size());
    }
    for (const std::string_view character : characters(*string)) {
      items.emplace_back(character);
    }
  } else if (!is_undefined()) {
    refuse("{}: expected an iterable, found {}", what, describe());
  }
  return items;
}

bool Value::truth() const {
  struct Truth {
    bool operator()(const Undefined&) const { return false; }
    bool operator()(const None&) const { return false; }
    bool operator()(bool value) const { return value; }
    bool operator()(int64_t value) const { return value != 0; }
    bool operator()(double value) const { return value != 0; }
    bool operator()(const std::string& value) const { return !value.empty(); }
    bool operator()(const SequencePtr& value) const { return !value->items.empty(); }
    bool operator()(const DictPtr& value) const { return !value->empty(); }
    bool operator()(const NamespacePtr&) const { return true; }
    bool operator()(const FunctionPtr&) const { return true; }
  };
  return std::visit(Truth{}, storage_);
}

std::string Value::describe() const {
  struct Describe {
    std::string operator()(const Undefined& value) const { return fmt::format("'{}', which is undefined", value.name); }
    std::string operator()(const None&) const { return "none"; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return fmt::format("the number {}", value); }
    std::string operator()(double value) const { return fmt::format("the number {}", float_text(value)); }
    std::string operator()(const std::string&) const { return "a string"; }
    std::string operator()(const SequencePtr&) const { return "a list"; }
    std::string operator()(const DictPtr&) const { return "a dict"; }
    std::string operator()(const NamespacePtr&) const { return "a namespace"; }
    std::string operator()(const FunctionPtr&) const { return "a function"; }
  };
  return std::visit(Describe{}, storage_);
}

std::string float_text(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  }
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string Value::text() const {
  return is_string() ? *get<std::string>() : is_undefined() ? "" : repr();
}

namespace {
/// Returns Python's repr(): with the quotes that it chooses and escapes of characters that it does not print.
std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char *at = text.data(), *const end = at + text.size(); at < end;) {
    const auto [code, size] = decode_utf8(at, end);
    if (*at == '\n') {
      out += "\\n";
    } else if (*at == '\r') {
      out += "\\r";
    } else if (*at == '\t') {
      out += "\\t";
    } else if (*at == '\\' || *at == quote) {
      out += {'\\', *at};
    } else if (is_printable(code)) {
      out.append(at, size);
    } else if (code < 0x100) {
      out += fmt::format("\\x{:02x}", code);
    } else {
      out += code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
    }
    at += size;
  }
  return out + quote;
}
}  // namespace

std::string Value::repr() const {
  struct Repr {
    std::string operator()(const Undefined&) const { return "Undefined"; }
    std::string operator()(const None&) const { return "None"; }
    std::string operator()(bool value) const { return value ? "True" : "False"; }
    std::string operator()(int64_t value) const { return fmt::format("{}", value); }
    std::string operator()(double value) const { return float_text(value); }
    std::string operator()(const std::string& value) const { return quoted(value); }
    std::string operator()(const SequencePtr& value) const {
      std::string out = value->is_tuple ? "(" : "[";
      for (size_t i = 0; i < value->items.size(); ++i) {
        out += (i > 0 ? ", " : "") + value->items[i].repr();
        require_bytes(out.size(), "printing a list");
      }
      return out + (value->is_tuple ? (value->items.size() == 1 ? ",)" : ")") : "]");
    }
    std::string operator()(const DictPtr& value) const {
      std::string out = "{";
      for (size_t i = 0; i < value->size(); ++i) {
        out += (i > 0 ? ", " : "") + quoted((*value)[i].first) + ": " + (*value)[i].second.repr();
        require_bytes(out.size(), "printing a dict");
      }
      return out + "}";
    }
    std::string operator()(const NamespacePtr&) const { refuse("a namespace cannot be printed"); }
    std::string operator()(const FunctionPtr&) const { refuse("a function cannot be printed; call it with ()"); }
  };
  return std::visit(Repr{}, storage_);
}

const Value* find(const Dict& dict, std::string_view key) {
  const auto at = std::find_if(dict.begin(), dict.end(), [&](const auto& entry) { return entry.first == key; });
  return at == dict.end() ? nullptr : &at->second;
}

void assign(Dict& dict, std::string_view key, Value value) {
  for (auto& [name, old] : dict) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  dict.emplace_back(std::string(key), std::move(value));
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.as_integer("==") == b.as_integer("==")
                                            : a.as_number("==") == b.as_number("==");
  }
  if (a.is_string() && b.is_string()) {
    return *a.get<std::string>() == *b.get<std::string>();
  }
  if (a.is_list() && b.is_list()) {
    const auto& x = **a.get<Value::SequencePtr>();
    const auto& y = **b.get<Value::SequencePtr>();
    return x.is_tuple == y.is_tuple &&
           std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(), equal);
  }
  if (a.is_dict() && b.is_dict()) {
    const Dict& x = **a.get<Value::DictPtr>();
    const Dict& y = **b.get<Value::DictPtr>();
    return x.size() == y.size() && std::all_of(x.begin(), x.end(), [&](const auto& entry) {
             const Value* other = find(y, entry.first);
             return other != nullptr && equal(entry.second, *other);
           });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    return *a.get<std::string>() < *b.get<std::string>();  // the order of bytes equals that of code points
  }
  if (!a.is_number() || !b.is_number()) {
    refuse("{} cannot be compared with {}", a.describe(), b.describe());
  }
  return a.is_integer() && b.is_integer() ? a.as_integer("<") < b.as_integer("<") : a.as_number("<") < b.as_number("<");
}

bool contains(const Value& container, const Value& item) {
  if (const std::string* string = container.get<std::string>()) {
    return string->find(item.as_string("'in' a string")) != std::string::npos;
  }
  const List items = container.elements("'in'");
  return std::any_of(items.begin(), items.end(), [&](const Value& other) { return equal(item, other); });
}

int64_t length(const Value& value) {
  if (value.is_number() || value.is_none()) {
    refuse("length: {} has no length", value.describe());
  }
  if (const auto* sequence = value.get<Value::SequencePtr>()) {
    return static_cast<int64_t>((*sequence)->items.size());
  }
  if (const std::string* string = value.get<std::string>()) {
    return static_cast<int64_t>(count_characters(*string));
  }
  return static_cast<int64_t>(value.elements("length").size());
}

}  // namespace lehr::data::jinja
