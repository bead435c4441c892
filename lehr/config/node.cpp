#include "lehr/config/node.h"

#include "lehr/base/error.h"

namespace lehr {

std::string Origin::text() const {
  if (line == 0) {
    return file;
  }
  return fmt::format("{}:{}:{}", file, line, column);
}

Node::Node() = default;
Node::Node(const Node& other) = default;
Node::Node(Node&& other) noexcept = default;
Node& Node::operator=(const Node& other) = default;
Node& Node::operator=(Node&& other) noexcept = default;
Node::~Node() = default;

std::string Node::describe() const {
  struct Describe {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return fmt::format("integer {}", value); }
    std::string operator()(double value) const { return fmt::format("number {}", value); }
    std::string operator()(const std::string& value) const {
      return value.size() <= 60 ? fmt::format("string \"{}\"", value) : "a long string";
    }
    std::string operator()(const List& value) const { return fmt::format("a list of {}", value.size()); }
    std::string operator()(const Table&) const { return "a table"; }
  };
  return std::visit(Describe{}, value_);
}

void Node::mismatch(const char* expected) const {
  const std::string where = origin();
  fail("{}{}{}: expected {}, found {}", where, where.empty() || key_.empty() ? "" : ": ", key_, expected, describe());
}

bool Node::as_bool() const {
  return is_bool() ? std::get<bool>(value_) : (mismatch("true or false"), false);
}

int64_t Node::as_int() const {
  return is_int() ? std::get<int64_t>(value_) : (mismatch("an integer"), 0);
}

double Node::as_double() const {
  if (is_int()) {
    return static_cast<double>(std::get<int64_t>(value_));
  }
  return is_double() ? std::get<double>(value_) : (mismatch("a number"), 0.0);
}

const std::string& Node::as_string() const {
  if (!is_string()) {
    mismatch("a string");
  }
  return std::get<std::string>(value_);
}

const Node::List& Node::items() const {
  if (!is_list()) {
    mismatch("a list");
  }
  return std::get<List>(value_);
}

const Node::Table& Node::entries() const {
  if (!is_table()) {
    mismatch("a table");
  }
  return std::get<Table>(value_);
}

size_t Node::size() const {
  return is_list() ? items().size() : entries().size();
}

const Node* Node::find(std::string_view key) const {
  for (const auto& [name, value] : entries()) {
    if (name == key) {
      return &value;
    }
  }
  return nullptr;
}

Node* Node::find(std::string_view key) {
  return const_cast<Node*>(std::as_const(*this).find(key));
}

const Node& Node::at(std::string_view key) const {
  const Node* found = find(key);
  if (found == nullptr) {
    fail("{}: '{}{}{}' is missing", origin(), key_, key_.empty() ? "" : ".", key);
  }
  return *found;
}

const Node& Node::at(size_t index) const {
  require(index < items().size(), "{}: {}: expected at least {} elements, found {}", origin(), key_, index + 1, size());
  return items()[index];
}

void Node::set(std::string_view key, Node value) {
  if (Node* found = find(key)) {
    *found = std::move(value);
  } else {
    mutable_entries().emplace_back(std::string(key), std::move(value));
  }
}

void Node::erase(std::string_view key) {
  std::erase_if(mutable_entries(), [&](const auto& entry) { return entry.first == key; });
}

void Node::push_back(Node value) {
  mutable_items().push_back(std::move(value));
}

Node::List& Node::mutable_items() {
  return const_cast<List&>(items());
}

Node::Table& Node::mutable_entries() {
  return const_cast<Table&>(entries());
}

}  // namespace lehr
