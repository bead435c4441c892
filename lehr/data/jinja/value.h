// Values inside a template: JSON values with Python's rules of truth, equality and printing.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lehr/data/jinja/problem.h"

namespace lehr::data::jinja {

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in order of insertion, as in Python

/// The arguments of a call.
struct Arguments {
  List positional;
  Dict named;
};

/// A value; cheap to copy, since lists and dicts are shared. Only a namespace can change.
class Value {
 public:
  /// A missing name or key. Prints as nothing, is false, and has no attributes or items.
  struct Undefined {
    std::string name;
  };
  struct None {};
  /// The bytes of a list or dict. Its elements may be shared with other lists, and occur several times.
  struct Size {
    size_t own = 0;   ///< Of itself, with strings in it, but without inner lists and dicts.
    size_t tree = 0;  ///< Of everything in it, each time that it occurs: the cost of printing and comparing.
    int depth = 0;    ///< Levels of lists and dicts below it.
  };
  struct Sequence {
    List items;
    bool is_tuple = false;  ///< Tuples differ from lists only in printing.
    Size bytes = {};
  };
  struct Mapping : Dict {
    explicit Mapping(Dict entries) : Dict(std::move(entries)) {}
    Size bytes = {};
  };
  /// The result of namespace(), whose entries {% set %} can change.
  struct Namespace {
    Dict entries;
  };
  using Function = std::function<Value(const Arguments&)>;
  using SequencePtr = std::shared_ptr<const Sequence>;
  using DictPtr = std::shared_ptr<const Mapping>;
  using NamespacePtr = std::shared_ptr<Namespace>;
  using FunctionPtr = std::shared_ptr<const Function>;

  Value() = default;  ///< undefined
  explicit Value(bool value) : storage_(value) {}
  explicit Value(int64_t value) : storage_(value) {}
  explicit Value(double value) : storage_(value) {}
  explicit Value(std::string value) : storage_(std::move(value)) {}
  explicit Value(std::string_view value) : storage_(std::string(value)) {}
  explicit Value(const char* value) : storage_(std::string(value)) {}

  static Value undefined(std::string name);
  static Value none();
  /// These throw Problem for more than kMaxNesting levels, and for namespaces as elements, which could contain
  /// themselves.
  static Value list(List items, bool is_tuple = false);
  static Value dict(Dict entries);
  static Value name_space(Dict entries);
  static Value function(Function function);
  /// Converts JSON. Throws Problem for integers beyond 64 bits and for excessive nesting (`depth` is the current
  /// level).
  static Value from_json(const nlohmann::ordered_json& json, int depth = 0);

  /// Returns the value as T, or null if it has another type.
  template <class T>
  const T* get() const {
    return std::get_if<T>(&storage_);
  }
  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  bool is_string() const { return get<std::string>() != nullptr; }
  bool is_list() const { return get<SequencePtr>() != nullptr; }
  bool is_dict() const { return get<DictPtr>() != nullptr; }
  bool is_bool() const { return get<bool>() != nullptr; }
  bool is_float() const { return get<double>() != nullptr; }
  /// int, float or bool (which Python counts as 0 and 1).
  bool is_number() const { return is_bool() || is_float() || get<int64_t>() != nullptr; }
  /// int or bool.
  bool is_integer() const { return is_bool() || get<int64_t>() != nullptr; }

  /// These throw Problem for a value of another type; `what` is the subject of the message.
  const std::string& as_string(std::string_view what) const;
  int64_t as_integer(std::string_view what) const;
  double as_number(std::string_view what) const;
  /// Returns the elements of a list, the keys of a dict, or the characters of a string; nothing for undefined.
  List elements(std::string_view what) const;

  /// Bytes of a copy: lists and dicts are shared.
  size_t copied_bytes() const { return kBytes + (is_string() ? get<std::string>()->size() : 0); }
  /// Size::own and Size::tree; of other values the bytes of a copy.
  size_t own_bytes() const;
  size_t tree_bytes() const;

  bool truth() const;
  /// Python's str(), the output of `{{ value }}`.
  std::string text() const;
  /// Python's repr(), used inside printed lists.
  std::string repr() const;
  /// Describes the value in messages: "a string", "a list", "'name', which is undefined".
  std::string describe() const;

 private:
  static constexpr size_t kBytes = 48;
  Size size_of_element() const;
  std::variant<Undefined, None, bool, int64_t, double, std::string, SequencePtr, DictPtr, NamespacePtr, FunctionPtr>
      storage_;
};

/// Maximum levels of lists and dicts.
inline constexpr int kMaxNesting = 256;

/// Returns the entry of that key, or null.
const Value* find(const Dict& dict, std::string_view key);
/// Adds or replaces an entry.
void assign(Dict& dict, std::string_view key, Value value);

/// Python's ==: numbers by value, also across kinds; lists and dicts by content.
bool equal(const Value& a, const Value& b);
/// Python's <, for two numbers or two strings.
bool less(const Value& a, const Value& b);
/// Python's `item in container`.
bool contains(const Value& container, const Value& item);
/// Returns the number of elements, entries or characters.
int64_t length(const Value& value);

/// Format of json.dumps; the defaults are those of the filter `tojson` in transformers.
struct JsonStyle {
  int64_t indent = -1;  ///< Spaces per level; -1: a single line.
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";  ///< With indentation the filter uses ",", as Python does.
  std::string key_separator = ": ";
};
std::string to_json(const Value& value, const JsonStyle& style);

/// Formats a float like Python: the shortest digits that round-trip, always with ".0" or an exponent.
std::string float_text(double value);

}  // namespace lehr::data::jinja
