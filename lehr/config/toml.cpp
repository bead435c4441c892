#include "lehr/config/toml.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <sstream>

namespace lehr {
// toml++ asserts conditions that some invalid TOML violates; without assertions it tells the compiler to assume them.
struct TomlAssertion {};
constexpr void assert_toml(bool holds) {
  if (!holds) {
    throw TomlAssertion();
  }
}
}  // namespace lehr
#undef NDEBUG
#define TOML_ASSERT(expression) ::lehr::assert_toml(static_cast<bool>(expression))
#define TOML_EXCEPTIONS 1
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "lehr/base/error.h"

namespace lehr {

namespace {
Node convert(const toml::node& value, const std::string& name, const std::string& key, int64_t line_offset) {
  Node node;
  if (const auto* flag = value.as_boolean()) {
    node = Node(flag->get());
  } else if (const auto* integer = value.as_integer()) {
    node = Node(integer->get());
  } else if (const auto* number = value.as_floating_point()) {
    node = Node(number->get());
  } else if (const auto* text = value.as_string()) {
    node = Node(text->get());
  } else if (const auto* list = value.as_array()) {
    node = Node::make_list();
    size_t index = 0;
    for (const auto& item : *list) {
      node.push_back(convert(item, name, fmt::format("{}.{}", key, index++), line_offset));
    }
  } else if (const auto* table = value.as_table()) {
    // toml++ sorts keys; readers expect the order of the file.
    std::vector<std::pair<toml::source_position, Node::Table::value_type>> entries;
    for (const auto& [entry, item] : *table) {
      const std::string entry_name(entry.str());
      Node converted = convert(item, name, key.empty() ? entry_name : key + "." + entry_name, line_offset);
      // Messages name the key.
      converted.set_origin(
          {name,
           static_cast<int64_t>(entry.source().begin.line) + line_offset,
           static_cast<int64_t>(entry.source().begin.column)});
      entries.emplace_back(entry.source().begin, std::pair{entry_name, std::move(converted)});
    }
    std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    node = Node::make_table();
    for (auto& [position, entry] : entries) {
      node.mutable_entries().push_back(std::move(entry));  // toml++ has refused duplicates
    }
  } else {
    fail(
        "{}:{}:{}: {}: dates and times are not supported",
        name,
        value.source().begin.line,
        value.source().begin.column,
        key);
  }
  const auto begin = value.source().begin;
  if (node.where().line == 0) {
    node.set_origin({name, static_cast<int64_t>(begin.line) + line_offset, static_cast<int64_t>(begin.column)});
  }
  node.set_key(key);
  return node;
}
// Returns the position after the string that begins at `i`, or the end of the text.
size_t after_string(std::string_view text, size_t i) {
  const char quote = text[i];
  const bool many_lines = text.substr(i, 3) == std::string(3, quote);
  for (i += many_lines ? 3 : 1; i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (many_lines && text.substr(i, 3) == std::string(3, quote)) {
      return std::min(text.find_first_not_of(quote, i), text.size());
    } else if (!many_lines && (text[i] == quote || text[i] == '\n')) {
      return i + 1;
    }
  }
  return text.size();
}

bool is_key_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
}

// Refuses invalid or extreme TOML that toml++ does not survive: each part of a dotted key is a nested table, which uses
// stack space when it is freed; some characters outside of ASCII lead to undefined behaviour, except in strings and
// comments; a table's name must begin like a key, or an assertion fails.
class Outline {
 public:
  Outline(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  void check() {
    for (size_t i = text_.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < text_.size();) {
      const char c = text_[i];
      if (c == '#') {
        i = std::min(text_.find('\n', i), text_.size());
        continue;
      }
      const bool is_string = c == '"' || c == '\'';
      if (c == '[' && begins_line_ && open_ == 0) {
        check_table(i);
      }
      if (!is_string) {
        look_at(i);
      } else if (i > 0 && std::string_view(" \t\r\n=,[{.\xBF").find(text_[i - 1]) == std::string_view::npos) {
        refuse(i, "a string in the middle of a word");
      }
      const size_t end = is_string ? after_string(text_, i) : i + 1;
      if (c == '"') {
        check_escapes(i, end);
      }
      begins_line_ = c == '\n' || (begins_line_ && (c == ' ' || c == '\t'));
      after_dot_ = is_string ? false : after_dot_;
      i = end;
    }
  }

 private:
  static constexpr int64_t kMostParts = 256;

  [[noreturn]] void refuse(size_t i, const std::string& what) const {
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<long>(i), '\n');
    const size_t begin = i == 0 ? 0 : text_.rfind('\n', i - 1) + 1;
    fail("{}:{}:{}: invalid TOML: {}", name_, line, i - begin + 1, what);
  }

  // The basic string from `begin` to `end`.
  void check_escapes(size_t begin, size_t end) const {
    for (size_t i = begin + 1; i + 1 < end; ++i) {
      if (text_[i] == '\\') {
        ++i;
        if (static_cast<unsigned char>(text_[i]) >= 0x80) {
          refuse(i, "an escape of a character outside of ASCII");
        }
      }
    }
  }

  // "[name]" or "[[name]]" at `i`.
  void check_table(size_t i) const {
    i += text_.substr(i).starts_with("[[") ? 2 : 1;
    const size_t first = std::min(text_.find_first_not_of(" \t", i), text_.size());
    const char c = first < text_.size() ? text_[first] : '\n';
    if (!is_key_character(c) && c != '"' && c != '\'') {
      refuse(i, "expected the name of a table");
    }
  }

  void look_at(size_t i) {
    const char c = text_[i];
    if (static_cast<unsigned char>(c) >= 0x80) {
      refuse(i, "a character outside of ASCII must be in a string");
    }
    if (c == '.') {
      if (after_dot_) {
        refuse(i, "expected a part of a key, or a digit, before the dot");
      }
      if (++parts_ >= kMostParts) {
        refuse(i, fmt::format("a key has more than {} parts", kMostParts));
      }
      after_dot_ = true;
    } else if (is_key_character(c)) {
      after_dot_ = false;
    } else if (c != ' ' && c != '\t') {
      parts_ = 0;
      after_dot_ = true;
      open_ += c == '[' || c == '{' ? 1 : (c == ']' || c == '}') && open_ > 0 ? -1 : 0;
    }
  }

  std::string_view text_;
  const std::string& name_;
  int64_t parts_ = 0, open_ = 0;  // of the current key; brackets
  bool after_dot_ = true, begins_line_ = true;
};
}  // namespace

Node parse_toml(std::string_view text, const std::string& name) {
  Outline(text, name).check();
  try {
    return convert(toml::parse(text), name, "", 0);
  } catch (const TomlAssertion&) {
    fail("{}: invalid TOML", name);
  } catch (const toml::parse_error& error) {
    fail(
        "{}:{}:{}: invalid TOML: {}",
        name,
        error.source().begin.line,
        error.source().begin.column,
        error.description());
  }
}

std::string toml_value(const Node& node) {
  if (node.is_bool()) {
    return node.as_bool() ? "true" : "false";
  }
  if (node.is_int()) {
    return std::to_string(node.as_int());
  }
  if (node.is_double()) {
    if (!std::isfinite(node.as_double())) {
      return std::isnan(node.as_double()) ? "nan" : node.as_double() > 0 ? "inf" : "-inf";
    }
    std::string text = fmt::format("{}", node.as_double());
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  if (node.is_string()) {
    std::ostringstream quoted;
    quoted << toml::value<std::string>(node.as_string());
    return quoted.str();
  }
  std::string text;
  if (node.is_list()) {
    for (const Node& item : node.items()) {
      text += (text.empty() ? "" : ", ") + toml_value(item);
    }
    return "[" + text + "]";
  }
  for (const auto& [key, value] : node.entries()) {
    text += (text.empty() ? "" : ", ") + key + " = " + toml_value(value);
  }
  return "{" + text + "}";
}

}  // namespace lehr
