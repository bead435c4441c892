// How a config struct says what it holds, once, for everything that is done with it.
//
// A struct has one function, `void fields(FieldVisitor& v)`, that names each member with its sentence. Loading a TOML
// or JSON file, applying command-line overrides, printing, `--help` and comparing are visitors; the struct knows none
// of them. Cross-field rules go into an optional `void check(Problems& problems) const`.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lehr {

/// The types that a field may have. An empty optional means "not given", and is left out when printing.
using FieldRef = std::variant<
    bool*,
    int64_t*,
    double*,
    std::string*,
    std::optional<bool>*,
    std::optional<int64_t>*,
    std::optional<double>*,
    std::optional<std::string>*,
    std::vector<std::string>*,
    std::vector<int64_t>*,
    std::vector<double>*,
    std::map<std::string, int64_t>*>;

/// What a value must satisfy beyond its type. For lists it holds for each element.
struct Rule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
  bool max_excluded = false;
  std::vector<std::string> one_of = {};  ///< For strings: the allowed values. Empty: any.
};

/// Rules by name, as they stand in a `fields()` function.
inline Rule at_least(double min) {
  return {.min = min};
}
inline Rule positive() {
  return {.min = 0, .min_excluded = true};
}
inline Rule between(double min, double max) {
  return {.min = min, .max = max};
}
/// min <= value < max
inline Rule from_below(double min, double max) {
  return {.min = min, .max = max, .max_excluded = true};
}
inline Rule one_of(std::vector<std::string> values) {
  return {.one_of = std::move(values)};
}

/// One field as a visitor sees it.
struct Field {
  std::string_view name;
  std::string_view help;
  bool required = false;
  Rule rule = {};
};

class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;

  /// A field that a file must give.
  template <class T>
  void required(std::string_view name, T& value, std::string_view help, Rule rule = {}) {
    visit({name, help, true, std::move(rule)}, FieldRef(&value));
  }

  /// A field whose default is the value it has now.
  template <class T>
  void optional(std::string_view name, T& value, std::string_view help, Rule rule = {}) {
    visit({name, help, false, std::move(rule)}, FieldRef(&value));
  }

  /// A field with a closed set of values, written as strings in files.
  template <class E>
  void choice(
      std::string_view name, E& value, const std::vector<std::pair<std::string, E>>& values, std::string_view help) {
    std::string text;
    Rule rule;
    for (const auto& [word, meaning] : values) {
      rule.one_of.push_back(word);
      if (meaning == value) {
        text = word;
      }
    }
    visit({name, help, false, std::move(rule)}, FieldRef(&text));
    for (const auto& [word, meaning] : values) {
      if (word == text) {
        value = meaning;
      }
    }
  }

  /// A struct inside the struct: a table in TOML, an object in JSON.
  template <class T>
  void group(std::string_view name, T& value, std::string_view help) {
    begin_group(name, help);
    value.fields(*this);
    end_group();
  }

  /// A list of structs: an array of tables in TOML.
  template <class T>
  void list(std::string_view name, std::vector<T>& items, std::string_view help) {
    items.resize(begin_list(name, help, items.size()));
    if (items.empty() && wants_list_prototype()) {
      T prototype{};
      begin_item(0);
      prototype.fields(*this);
      end_item();
    }
    for (size_t i = 0; i < items.size(); ++i) {
      begin_item(i);
      items[i].fields(*this);
      end_item();
    }
    end_list();
  }

 protected:
  virtual void visit(const Field& field, FieldRef value) = 0;
  virtual void begin_group(std::string_view name, std::string_view help) = 0;
  virtual void end_group() = 0;
  /// Gets the present number of items, returns the number that there shall be.
  virtual size_t begin_list(std::string_view name, std::string_view help, size_t size) = 0;
  virtual void begin_item(size_t index) = 0;
  virtual void end_item() = 0;
  virtual void end_list() = 0;
  /// Whether an empty list should be shown with one default item (for --help).
  virtual bool wants_list_prototype() const { return false; }
};

/// Collects what is wrong, so that a user sees all of it at once.
class Problems {
 public:
  /// `key` is the dotted path of the field, as "training.seq_len"; the loader turns it into file, line and column.
  void add(std::string key, std::string message) { items_.push_back({std::move(key), std::move(message)}); }
  bool empty() const { return items_.empty(); }

  struct Item {
    std::string key;
    std::string message;
  };
  const std::vector<Item>& items() const { return items_; }

 private:
  std::vector<Item> items_;
};

}  // namespace lehr
