// A lightweight value tree for configs and JSON documents. Every node records its position in the source.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lehr {

/// The position of a value in its source. Line 0: unknown.
struct Origin {
  std::string file;  ///< A path, or "command line".
  int64_t line = 0;
  int64_t column = 0;

  /// Returns "file:line:column" as far as known.
  std::string text() const;
};

/// A value of a TOML or JSON document. Tables keep the order of insertion. Accessors throw usage errors that name the
/// origin, the key, the expected type and the found value.
class Node {
 public:
  using List = std::vector<Node>;
  using Table = std::vector<std::pair<std::string, Node>>;

  Node();  ///< null
  explicit Node(bool value) : value_(value) {}
  explicit Node(int64_t value) : value_(value) {}
  explicit Node(double value) : value_(value) {}
  explicit Node(std::string value) : value_(std::move(value)) {}
  explicit Node(const char* value) : value_(std::string(value)) {}
  // Defined in node.cpp, so that not every file compiles them.
  Node(const Node& other);
  Node(Node&& other) noexcept;
  Node& operator=(const Node& other);
  Node& operator=(Node&& other) noexcept;
  ~Node();
  static Node make_list() { return Node(Value(List{})); }
  static Node make_table() { return Node(Value(Table{})); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_list() const { return std::holds_alternative<List>(value_); }
  bool is_table() const { return std::holds_alternative<Table>(value_); }
  /// Returns the type for messages, such as "integer" or "table", with the value if it is short.
  std::string describe() const;

  bool as_bool() const;
  int64_t as_int() const;
  /// Accepts integers too.
  double as_double() const;
  const std::string& as_string() const;
  const List& items() const;
  const Table& entries() const;
  /// Number of elements of a list or entries of a table.
  size_t size() const;

  /// Returns the entry with this key, or null.
  const Node* find(std::string_view key) const;
  Node* find(std::string_view key);
  /// Returns the entry with this key. Throws a usage error if there is none.
  const Node& at(std::string_view key) const;
  /// Returns an element of a list. Throws a usage error if there is none.
  const Node& at(size_t index) const;
  const Node& at(int index) const { return at(static_cast<size_t>(index)); }

  /// Adds or replaces an entry of a table.
  void set(std::string_view key, Node value);
  /// Removes an entry of a table if it exists.
  void erase(std::string_view key);
  void push_back(Node value);
  List& mutable_items();
  Table& mutable_entries();

  /// The "file:line:column" of this value, as far as known.
  std::string origin() const { return origin_.text(); }
  const Origin& where() const { return origin_; }
  void set_origin(Origin origin) { origin_ = std::move(origin); }
  /// The dotted key of the value, if a parser set it.
  const std::string& key() const { return key_; }
  void set_key(std::string key) { key_ = std::move(key); }
  /// The original text of a value from a command line, where 2024 may be meant as a string.
  const std::string& typed() const { return typed_; }
  void set_typed(std::string text) { typed_ = std::move(text); }

 private:
  using Value = std::variant<std::monostate, bool, int64_t, double, std::string, List, Table>;
  explicit Node(Value value) : value_(std::move(value)) {}
  [[noreturn]] void mismatch(const char* expected) const;

  Value value_;
  Origin origin_;
  std::string key_;
  std::string typed_;
};

}  // namespace lehr
