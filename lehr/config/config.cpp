#include "lehr/config/config.h"

#include <charconv>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/toml.h"

namespace lehr {

namespace {
std::vector<std::string> split_key(const std::string& key) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t dot = key.find('.', begin);
    parts.push_back(key.substr(begin, dot - begin));
    if (dot == std::string::npos) {
      return parts;
    }
    begin = dot + 1;
  }
}

std::optional<size_t> as_index(const std::string& part) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  return error == std::errc() && end == part.data() + part.size() ? std::optional(index) : std::nullopt;
}

// Parses a TOML value, or else a bare word as a string.
Node parse_override(const std::string& key, const std::string& text) {
  Node value;
  try {
    value = parse_toml("x = " + text, "command line").at("x");
  } catch (const Error&) {
    const bool bare = text.find_first_of("\"'[]{}\n") == std::string::npos;
    const bool has_escape = text.find('"') < text.find('\\') && text.find('\\') != std::string::npos;
    require(
        bare,
        "command line: --{}: '{}' is not a value; write strings in quotes, lists as [1, 2]{}",
        key,
        text,
        has_escape ? R"(, and in double quotes \\ for each backslash, or use single quotes)" : "");
    value = Node(text);
  }
  value.set_origin({.file = "command line"});
  value.set_key(key);
  value.set_typed(text);
  return value;
}

void set_dotted(Node& root, const std::string& key, Node value) {
  const auto parts = split_key(key);
  Node* at = &root;
  for (size_t i = 0; i < parts.size(); ++i) {
    require(!parts[i].empty(), "command line: --{}: expected section.key=value", key);
    const bool last = i + 1 == parts.size();
    if (at->is_list()) {
      const auto index = as_index(parts[i]);
      if (!index || *index > at->size()) {
        fail(
            "command line: --{}: '{}' is not an index of a list of {}; the first index is 0",
            key,
            parts[i],
            at->size());
      }
      if (*index == at->size()) {
        at->push_back(Node::make_table());
      }
      at = &at->mutable_items()[*index];
    } else {
      if (!at->is_table()) {
        *at = Node::make_table();
        at->set_origin(value.where());
      }
      if (at->find(parts[i]) == nullptr) {
        // If the next part is a number, this value is a list.
        const bool list = !last && as_index(parts[i + 1]).has_value();
        Node made = list ? Node::make_list() : Node::make_table();
        made.set_origin({.file = "command line"});
        at->set(parts[i], made);
      }
      at = at->find(parts[i]);
    }
    if (last) {
      *at = std::move(value);
    }
  }
}
}  // namespace

Node merge_sources(const ConfigSources& sources) {
  Node root = sources.file ? parse_toml(read_file(*sources.file), sources.file->string()) : Node::make_table();
  for (const auto& [key, text] : sources.overrides) {
    Node value = parse_override(key, text);
    if (!sources.option.empty()) {
      value.set_origin({.file = "command line: --" + sources.option});
    }
    set_dotted(root, key, std::move(value));
  }
  return root;
}

}  // namespace lehr
