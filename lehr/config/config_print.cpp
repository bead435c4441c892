// The visitors that print a config: as a tree, as commented TOML, as help.
#include <fmt/ranges.h>

#include <cmath>

#include "lehr/config/config.h"
#include "lehr/config/help_text.h"
#include "lehr/config/toml.h"

namespace lehr {

namespace {
struct ToNode {
  Node operator()(bool value) const { return Node(value); }
  Node operator()(int64_t value) const { return Node(value); }
  Node operator()(double value) const { return Node(value); }
  Node operator()(const std::string& value) const { return Node(value); }
  template <class T>
  Node operator()(const std::optional<T>& value) const {
    return value ? (*this)(*value) : Node();
  }
  template <class T>
  Node operator()(const std::vector<T>& values) const {
    Node list = Node::make_list();
    for (const auto& value : values) {
      list.push_back((*this)(value));
    }
    return list;
  }
  Node operator()(const std::map<std::string, int64_t>& values) const {
    Node table = Node::make_table();
    for (const auto& [key, value] : values) {
      table.set(key, Node(value));
    }
    return table;
  }
};

Node value_of(FieldRef value) {
  return std::visit([](auto* target) { return ToNode{}(*target); }, value);
}

class TreeWriter : public FieldVisitor {
 public:
  TreeWriter() { open_.push_back(Node::make_table()); }
  void visit(const Field& field, FieldRef value) override {
    Node node = value_of(value);
    if (!node.is_null()) {
      open_.back().set(field.name, std::move(node));
    }
  }
  void visit_others(Node& values, std::string_view) override {
    for (const auto& [name, value] : values.entries()) {
      open_.back().set(name, value);
    }
  }
  void begin_group(std::string_view name, std::string_view) override { push(name, Node::make_table()); }
  void end_group() override { pop(); }
  size_t begin_list(std::string_view name, std::string_view, size_t size) override {
    push(name, Node::make_list());
    return size;
  }
  void begin_item(size_t) override { push("", Node::make_table()); }
  void end_item() override { pop(); }
  void end_list() override { pop(); }
  Node take() { return std::move(open_.front()); }

 private:
  void push(std::string_view name, Node node) {
    names_.emplace_back(name);
    open_.push_back(std::move(node));
  }
  void pop() {
    Node done = std::move(open_.back());
    open_.pop_back();
    if (open_.back().is_list()) {
      open_.back().push_back(std::move(done));
    } else {
      open_.back().set(names_.back(), std::move(done));
    }
    names_.pop_back();
  }
  std::vector<Node> open_;
  std::vector<std::string> names_;
};

// TOML requires the values of a table before its sub-tables, so the text of each table is buffered until it ends.
class TomlWriter : public FieldVisitor {
 public:
  TomlWriter() { open_.push_back({}); }
  void visit(const Field& field, FieldRef value) override {
    const Node node = value_of(value);
    std::string& text = open_.back().values;
    text += fmt::format("# {}\n", field.help);
    if (node.is_null()) {
      text += fmt::format("# {} is unset\n", field.name);
    } else {
      text += fmt::format("{} = {}\n", field.name, toml_value(node));
    }
  }
  void visit_others(Node& values, std::string_view help) override {
    open_.back().values += fmt::format("# {}\n", help);
    for (const auto& [name, value] : values.entries()) {
      open_.back().values += fmt::format("{} = {}\n", name, toml_value(value));
    }
  }
  void begin_group(std::string_view name, std::string_view help) override {
    open_.push_back({.key = path(name), .help = std::string(help)});
  }
  void end_group() override {
    const Table done = std::move(open_.back());
    open_.pop_back();
    open_.back().tables += fmt::format("\n# {}\n[{}]\n{}{}", done.help, done.key, done.values, done.tables);
  }
  size_t begin_list(std::string_view name, std::string_view help, size_t size) override {
    open_.push_back({.key = path(name), .help = std::string(help)});
    return size;
  }
  void begin_item(size_t) override { open_.push_back({.key = open_.back().key}); }
  void end_item() override {
    const Table done = std::move(open_.back());
    open_.pop_back();
    open_.back().tables += fmt::format("\n[[{}]]\n{}{}", done.key, done.values, done.tables);
  }
  void end_list() override {
    const Table done = std::move(open_.back());
    open_.pop_back();
    open_.back().tables += done.tables;
  }
  std::string take() { return open_.front().values + open_.front().tables; }

 private:
  struct Table {
    std::string key = {};
    std::string help = {};
    std::string values = {};
    std::string tables = {};
  };
  std::string path(std::string_view name) const {
    return open_.back().key.empty() ? std::string(name) : fmt::format("{}.{}", open_.back().key, name);
  }
  std::vector<Table> open_;
};

struct TypeName {
  const char* operator()(const bool*) const { return "true|false"; }
  const char* operator()(const int64_t*) const { return "integer"; }
  const char* operator()(const double*) const { return "number"; }
  const char* operator()(const std::string*) const { return "string"; }
  const char* operator()(const std::map<std::string, int64_t>*) const { return "table of integers"; }
  const char* operator()(const std::vector<std::string>*) const { return "list of strings"; }
  const char* operator()(const std::vector<int64_t>*) const { return "list of integers"; }
  const char* operator()(const std::vector<double>*) const { return "list of numbers"; }
  template <class T>
  const char* operator()(const std::optional<T>*) const {
    return (*this)(static_cast<const T*>(nullptr));
  }
};

class HelpWriter : public FieldVisitor {
 public:
  void visit(const Field& field, FieldRef value) override {
    std::string facts = field.rule.one_of.empty() ? std::visit(TypeName{}, value)
                                                  : fmt::format("{}", fmt::join(field.rule.one_of, "|"));
    if (std::isfinite(field.rule.min)) {
      facts += fmt::format(", {} {}", field.rule.min_excluded ? ">" : ">=", field.rule.min);
    }
    if (std::isfinite(field.rule.max)) {
      facts += fmt::format(", {} {}", field.rule.max_excluded ? "<" : "<=", field.rule.max);
    }
    const Node node = value_of(value);
    if (field.required) {
      facts += ", required";
    } else if (node.is_null() || (node.is_string() && node.as_string().empty())) {
      facts += ", unset by default";
    } else {
      facts += ", default " + toml_value(node);
    }
    text_ += fmt::format("  {}  ({})\n", field.name, facts);
    text_ += wrapped_help(field.help);
  }
  void visit_others(Node&, std::string_view help) override { text_ += "  any other key\n" + wrapped_help(help); }
  void begin_group(std::string_view name, std::string_view help) override { begin(name, help, "[", "]"); }
  void end_group() override { path_.pop_back(); }
  size_t begin_list(std::string_view name, std::string_view help, size_t) override {
    begin(name, help, "[[", "]]");
    return 0;
  }
  void begin_item(size_t) override {}
  void end_item() override {}
  void end_list() override { path_.pop_back(); }
  bool wants_list_prototype() const override { return true; }
  std::string take() { return std::move(text_); }

 private:
  void begin(std::string_view name, std::string_view help, const char* open, const char* close) {
    path_.emplace_back(name);
    text_ += fmt::format("\n{}{}{}  {}\n", open, fmt::join(path_, "."), close, help);
  }
  std::vector<std::string> path_;
  std::string text_;
};
}  // namespace

Node object_to_node(const ConfigObject& object) {
  TreeWriter writer;
  object.fields(writer);
  return writer.take();
}

std::string object_to_toml(const ConfigObject& object) {
  TomlWriter writer;
  object.fields(writer);
  return writer.take();
}

std::string object_help(const ConfigObject& object) {
  HelpWriter writer;
  object.fields(writer);
  return writer.take();
}

}  // namespace lehr
