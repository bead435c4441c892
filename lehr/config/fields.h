// Field declarations: a config struct declares its members once, for every visitor.
//
// A struct has one function, `void fields(FieldVisitor& v)`, that names each member with its help sentence. Loading a
// TOML or JSON file, applying command-line overrides, printing, `--help` and comparing are visitors; the struct knows
// none of them. Cross-field rules are in an optional `void check(Problems& problems) const`.
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

class Node;

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

/// A constraint on a value beyond its type. For lists it applies to each element.
struct Rule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
  bool max_excluded = false;
  std::vector<std::string> one_of = {};  ///< For strings: the allowed values. Empty: any.
};

/// Shorthands for common rules in `fields()` functions.
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

/// The description of one field that a visitor receives.
struct Field {
  std::string_view name;
  std::string_view help;
  bool required = false;
  Rule rule = {};
};

/// The interface of a visitor of a config's fields: `fields()` of a struct calls one function for each of its members.
/// Visitors load, override, print and explain configs (config/config.h).
class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;

  /// Declares a field that a file must set.
  template <class T>
  void required(std::string_view name, T& value, std::string_view help, Rule rule = {}) {
    visit({name, help, true, std::move(rule)}, FieldRef(&value));
  }

  /// Declares a field whose default is its current value.
  template <class T>
  void optional(std::string_view name, T& value, std::string_view help, Rule rule = {}) {
    visit({name, help, false, std::move(rule)}, FieldRef(&value));
  }

  /// Declares a field with a closed set of values, written as strings in files.
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

  /// Declares a nested struct: a table in TOML, an object in JSON.
  template <class T>
  void group(std::string_view name, T& value, std::string_view help) {
    begin_group(name, help);
    value.fields(*this);
    end_group();
  }

  /// Declares a list of structs: an array of tables in TOML.
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

  /// Declares, after all fields of a struct, that its table may have further keys of any type: they are put into the
  /// table `values` as they are written.
  void others(Node& values, std::string_view help) { visit_others(values, help); }

 protected:
  virtual void visit(const Field& field, FieldRef value) = 0;
  virtual void visit_others(Node& /*values*/, std::string_view /*help*/) {}
  virtual void begin_group(std::string_view name, std::string_view help) = 0;
  virtual void end_group() = 0;
  /// Takes the current number of items and returns the number that the list is resized to.
  virtual size_t begin_list(std::string_view name, std::string_view help, size_t size) = 0;
  virtual void begin_item(size_t index) = 0;
  virtual void end_item() = 0;
  virtual void end_list() = 0;
  /// True if an empty list should be shown with one default item (for --help).
  virtual bool wants_list_prototype() const { return false; }
};

/// Collects problems, so that the user sees all of them at once.
class Problems {
 public:
  /// `key` is the dotted path of the field, such as "training.seq_len"; the loader maps it to file, line and column.
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
