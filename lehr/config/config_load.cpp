// The visitor that fills a config struct and collects all problems.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lehr/base/error.h"
#include "lehr/config/command_line.h"
#include "lehr/config/config.h"
#include "lehr/config/field_rules.h"
#include "lehr/config/suggest.h"

namespace lehr {

namespace {
struct Mismatch {
  std::string expected;
  std::string advice = "";
};

// Each function reads a node or throws the type that it expected.
void read(const Node& node, bool& value) {
  if (!node.is_bool()) {
    throw Mismatch{"true or false"};
  }
  value = node.as_bool();
}
void read(const Node& node, int64_t& value) {
  if (!node.is_int()) {
    constexpr double kExact = 1LL << 53;
    const bool whole =
        node.is_double() && std::abs(node.as_double()) <= kExact && std::trunc(node.as_double()) == node.as_double();
    throw Mismatch{
        "an integer",
        whole ? fmt::format("; write {}, without point or exponent", static_cast<int64_t>(node.as_double())) : ""};
  }
  value = node.as_int();
}
void read(const Node& node, double& value) {
  if (!node.is_int() && !node.is_double()) {
    throw Mismatch{"a number"};
  }
  value = node.as_double();
}
void read(const Node& node, std::string& value) {
  if (!node.typed().empty() && !node.is_string() && !node.is_list() && !node.is_table()) {
    value = node.typed();
    return;
  }
  if (!node.is_string()) {
    throw Mismatch{"a string"};
  }
  value = node.as_string();
}
template <class T>
void read(const Node& node, std::optional<T>& value) {
  T inner{};
  read(node, inner);
  value = std::move(inner);
}
template <class T>
void read(const Node& node, std::vector<T>& value) {
  if (!node.is_list()) {
    throw Mismatch{"a list"};
  }
  value.clear();
  for (const Node& item : node.items()) {
    try {
      read(item, value.emplace_back());
    } catch (const Mismatch& mismatch) {
      throw Mismatch{"a list in which each element is " + mismatch.expected};
    }
  }
}
void read(const Node& node, std::map<std::string, int64_t>& value) {
  if (!node.is_table()) {
    throw Mismatch{"a table of integers"};
  }
  value.clear();
  for (const auto& [key, item] : node.entries()) {
    try {
      read(item, value[key]);
    } catch (const Mismatch&) {
      throw Mismatch{"a table of integers"};
    }
  }
}

// Returns the node with a dotted key, or the nearest table around it.
const Node* locate(const Node& root, const std::string& key) {
  const Node* at = &root;
  const Node* found = nullptr;
  size_t begin = 0;
  while (begin <= key.size()) {
    const size_t dot = std::min(key.find('.', begin), key.size());
    const std::string part = key.substr(begin, dot - begin);
    if (at->is_table()) {
      at = at->find(part);
    } else if (at->is_list() && !part.empty() && part.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = std::stoul(part);
      at = index < at->size() ? &at->at(index) : nullptr;
    } else {
      return found;
    }
    if (at == nullptr) {
      return found;
    }
    found = at;
    begin = dot + 1;
  }
  return found;
}

class Loader : public FieldVisitor {
 public:
  Loader(const Node& root, std::string name) : name_(std::move(name)) { levels_.push_back({&root, ""}); }

  void visit(const Field& field, FieldRef value) override {
    const std::string key = path(field.name);
    known_.insert(key);
    leaves_.push_back(key);
    const Node* node = find(field.name);
    if (node == nullptr) {
      // An example item, which is not in the file, requires no fields.
      if (field.required && !levels_.back().example) {
        problem(nullptr, key, "is missing; it has no default");
      }
      return;
    }
    std::visit(
        [&](auto* target) {
          try {
            read(*node, *target);
          } catch (const Mismatch& mismatch) {
            unread_.insert(key);
            problem(
                node,
                key,
                fmt::format("expected {}, found {}{}", mismatch.expected, node->describe(), mismatch.advice));
            return;
          }
          if (const auto expected = CheckRule{field.rule}(*target)) {
            problem(node, key, fmt::format("expected {}, found {}", *expected, node->describe()));
          }
        },
        value);
  }

  void visit_others(Node& values, std::string_view) override {
    if (levels_.back().node == nullptr) {
      return;
    }
    for (const auto& [name, value] : levels_.back().node->entries()) {
      const std::string key = path(name);
      if (known_.insert(key).second) {
        leaves_.push_back(key);  // nothing in it is unknown
        values.set(name, value);
      }
    }
  }

  void begin_group(std::string_view name, std::string_view) override {
    const std::string key = path(name);
    known_.insert(key);
    groups_.push_back(key);
    const Node* node = find(name);
    if (node != nullptr && !node->is_table()) {
      unread_.insert(key);
      problem(node, key, fmt::format("expected a table, found {}", node->describe()));
      node = nullptr;
    }
    levels_.push_back({node, key, levels_.back().example});
  }
  void end_group() override { levels_.pop_back(); }

  size_t begin_list(std::string_view name, std::string_view, size_t size) override {
    const std::string key = path(name);
    known_.insert(key);
    groups_.push_back(key);
    const Node* node = find(name);
    bool tables = node != nullptr && node->is_list();
    if (tables) {
      for (const Node& item : node->items()) {
        tables = tables && item.is_table();
      }
    }
    if (node != nullptr && !tables) {
      unread_.insert(key);
      problem(node, key, fmt::format("expected a list of tables, [[{}]], found {}", key, node->describe()));
      node = nullptr;
    }
    levels_.push_back({node, key});
    return node != nullptr ? node->size() : size;
  }
  void begin_item(size_t index) override {
    const Level& list = levels_.back();
    const std::string key = fmt::format("{}.{}", list.key, index);
    known_.insert(key);
    const bool there = list.node != nullptr && index < list.node->size();
    levels_.push_back({there ? &list.node->at(index) : nullptr, key, !there});
  }
  void end_item() override { levels_.pop_back(); }
  void end_list() override { levels_.pop_back(); }
  // Makes the keys of an absent list's items known, so that they are recognized when misplaced.
  bool wants_list_prototype() const override { return true; }

  /// Reports the keys of the tree that no field has.
  void find_unknown(const Node& node, const std::string& key) {
    if (!key.empty() && known_.count(key) == 0) {
      problem(
          &node,
          key,
          describe_unknown(key, node.is_table() || (node.is_list() && node.size() > 0 && node.at(0).is_table())));
      return;
    }
    if (std::find(leaves_.begin(), leaves_.end(), key) != leaves_.end()) {
      return;
    }
    if (node.is_table()) {
      for (const auto& [name, value] : node.entries()) {
        find_unknown(value, key.empty() ? name : key + "." + name);
      }
    } else if (node.is_list() && known_.count(key + ".0") != 0) {  // not [[training]], which is reported as a list
      for (size_t i = 0; i < node.size(); ++i) {
        find_unknown(node.at(i), fmt::format("{}.{}", key, i));
      }
    }
  }

  void add_checks(const Problems& problems, const Node& root) {
    for (const auto& item : problems.items()) {
      if (is_unread(item.key)) {
        continue;  // a consequence of the problem that was reported
      }
      problem(locate(root, item.key), item.key, item.message);
    }
  }

  bool ok() const { return messages_.empty(); }

  [[noreturn]] void raise() {
    std::stable_sort(messages_.begin(), messages_.end(), [](const Message& a, const Message& b) {
      return std::tie(a.line, a.column) < std::tie(b.line, b.column);
    });
    std::vector<std::string> lines;
    for (const auto& message : messages_) {
      if (std::find(lines.begin(), lines.end(), message.text) == lines.end()) {
        lines.push_back(message.text);
      }
    }
    fail("{}", fmt::join(lines, "\n"));
  }

 private:
  struct Level {
    const Node* node;
    std::string key;
    bool example = false;
  };
  struct Message {
    int64_t line, column;
    std::string text;
  };

  std::string path(std::string_view name) const {
    return levels_.back().key.empty() ? std::string(name) : fmt::format("{}.{}", levels_.back().key, name);
  }
  const Node* find(std::string_view name) const {
    return levels_.back().node != nullptr ? levels_.back().node->find(name) : nullptr;
  }

  void problem(const Node* node, const std::string& key, const std::string& what) {
    const Origin origin = node != nullptr ? node->where() : Origin{.file = name_};
    const bool from_command_line = origin.file == "command line";
    messages_.push_back(
        {origin.line,
         origin.column,
         fmt::format("{}: {}: {}", origin.text(), from_command_line ? option_name(key) : key, what)});
  }

  // True if the value of a key, or of a table around it, could not be read.
  bool is_unread(const std::string& key) const {
    return unread_.count(key) != 0 || (!table_of(key).empty() && is_unread(table_of(key)));
  }

  static std::string leaf_of(const std::string& key) { return key.substr(key.rfind('.') + 1); }
  static std::string table_of(const std::string& key) {
    const auto dot = key.rfind('.');
    return dot == std::string::npos ? "" : key.substr(0, dot);
  }

  std::string describe_unknown(const std::string& key, bool is_table) const {
    const std::string leaf = leaf_of(key);
    const std::string table = table_of(key);
    const auto& candidates = is_table ? groups_ : leaves_;
    // The same table first, then the same name in other tables, then any similar name.
    std::vector<std::string> siblings;
    std::vector<std::string> same_name;
    for (const auto& candidate : candidates) {
      if (table_of(candidate) == table) {
        siblings.push_back(leaf_of(candidate));
      }
      if (leaf_of(candidate) == leaf) {
        same_name.push_back(table_of(candidate));
      }
    }
    if (!same_name.empty()) {
      return fmt::format("unknown key; '{}' belongs in [{}]", leaf, fmt::join(same_name, "] or ["));
    }
    if (const auto near = suggest(leaf, siblings)) {
      return fmt::format("unknown key; did you mean '{}'?", table.empty() ? *near : table + "." + *near);
    }
    if (const auto near = suggest(key, candidates)) {
      return fmt::format("unknown key; did you mean '{}'?", *near);
    }
    if (table.empty() || known_.count(table) == 0) {
      return fmt::format("unknown {}; known: {}", is_table ? "table" : "key", fmt::join(siblings, ", "));
    }
    return fmt::format("unknown key; [{}] has {}", table, fmt::join(siblings, ", "));
  }

  std::string name_;
  std::vector<Level> levels_;
  std::set<std::string> known_;
  std::set<std::string> unread_;  // keys with a value of another type
  std::vector<std::string> leaves_;
  std::vector<std::string> groups_;
  std::vector<Message> messages_;
};
}  // namespace

std::string with_place(const Node& sources, const std::string& message) {
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.");
  const std::string key = message.substr(0, end);
  if (end == std::string::npos || message[end] != ':' || key.find('.') == std::string::npos) {
    return message;
  }
  const Node* node = locate(sources, key);
  if (node == nullptr || node->where().file.empty()) {
    return message;
  }
  const bool from_command_line = node->where().file == "command line";
  return fmt::format("{}: {}{}", node->origin(), from_command_line ? "--" : "", message);
}

void load_object(const ConfigObject& object, const Node& node, const std::string& name) {
  Loader loader(node, name);
  object.fields(loader);
  loader.find_unknown(node, "");
  if (object.check) {
    // Rules between fields are checked on the fields that could be read, so that all problems are reported together.
    Problems problems;
    object.check(problems);
    loader.add_checks(problems, node);
  }
  if (!loader.ok()) {
    loader.raise();
  }
}

}  // namespace lehr
