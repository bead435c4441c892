#include "lehr/config/json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/file.h"

namespace lehr {

namespace {
using Json = nlohmann::ordered_json;

// Builds the value tree while the text is read, in linear time: the parser's own tree and its callbacks take quadratic
// time for large objects.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  bool null() override { return add(Node()); }
  bool boolean(bool value) override { return add(Node(value)); }
  bool number_integer(number_integer_t value) override { return add(Node(static_cast<int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) override {
    require(
        value <= static_cast<uint64_t>(INT64_MAX), "{}: {}: the integer {} is too large", name_, next_place(), value);
    return add(Node(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(Node(value)); }
  bool string(string_t& value) override { return add(Node(std::move(value))); }
  bool binary(binary_t&) override { return false; }  // not in JSON
  bool start_object(size_t) override { return open(Node::make_table()); }
  bool start_array(size_t) override { return open(Node::make_list()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    Level& object = levels_.back();
    object.key = std::move(key);
    if (!object.keys.insert(object.key).second) {
      fail("{}: {}: duplicate key", name_, next_place());
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string what = error.what();
    const auto* syntax = dynamic_cast<const Json::parse_error*>(&error);
    if (syntax == nullptr) {  // a number that does not fit
      const std::string place = next_place();
      fail("{}: {}{}invalid JSON: {}", name_, place, place.empty() ? "" : ": ", what.substr(what.find("] ") + 2));
    }
    const auto end = text_.begin() + static_cast<long>(std::min(syntax->byte, text_.size()));
    const auto line = 1 + std::count(text_.begin(), end, '\n');
    const auto last_break = std::find(std::make_reverse_iterator(end), text_.rend(), '\n');
    const auto column = std::distance(std::make_reverse_iterator(end), last_break);
    const auto colon = what.find(": ", what.find("column"));
    fail("{}:{}:{}: invalid JSON: {}", name_, line, column, colon == std::string::npos ? what : what.substr(colon + 2));
  }

  Node take() { return std::move(root_); }

 private:
  // Far more than any document has, and few enough for functions that recurse once per level.
  static constexpr size_t kMostLevels = 256;
  // A value takes up to 600 bytes.
  static constexpr int64_t kMostValues = 2'000'000;
  // Each value has its own copy of the place, so that long places of many values would fill the memory.
  static constexpr size_t kLongestPlace = 256;

  // An open object or list.
  struct Level {
    Node* node = nullptr;
    std::string place = {};
    std::string key = {};  // of the next value
    std::unordered_set<std::string> keys = {};
  };

  // The place of the next value, as a dotted key.
  std::string next_place() const {
    if (levels_.empty()) {
      return "";
    }
    const Level& level = levels_.back();
    std::string place = level.node->is_list() ? fmt::format("{}[{}]", level.place, level.node->items().size())
                                              : (level.place.empty() ? "" : level.place + ".") + level.key;
    return place.size() <= kLongestPlace ? place : "..." + place.substr(place.size() - kLongestPlace);
  }

  Node* place_node(Node node) {
    require(++values_ <= kMostValues, "{}: more than {} values", name_, kMostValues);
    node.set_origin({.file = name_});
    node.set_key(next_place());
    if (levels_.empty()) {
      root_ = std::move(node);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.node->is_list()) {
      level.node->push_back(std::move(node));
      return &level.node->mutable_items().back();
    }
    auto& entries = level.node->mutable_entries();
    entries.emplace_back(std::move(level.key), std::move(node));
    return &entries.back().second;
  }

  bool add(Node node) {
    place_node(std::move(node));
    return true;
  }

  bool open(Node node) {
    if (levels_.size() >= kMostLevels) {
      fail("{}: {}: nested more than {} levels deep", name_, next_place(), kMostLevels);
    }
    // While a value is open, nothing is added beside it, so the pointer stays valid.
    Node* const placed = place_node(std::move(node));
    levels_.push_back({.node = placed, .place = placed->key()});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& name_;
  Node root_;
  std::vector<Level> levels_;
  int64_t values_ = 0;
};

Json convert(const Node& node) {
  if (node.is_bool()) {
    return node.as_bool();
  }
  if (node.is_int()) {
    return node.as_int();
  }
  if (node.is_double()) {
    require(std::isfinite(node.as_double()), "JSON: {}: {} cannot be represented", node.key(), node.as_double());
    return node.as_double();
  }
  if (node.is_string()) {
    return node.as_string();
  }
  if (node.is_list()) {
    Json json = Json::array();
    for (const Node& item : node.items()) {
      json.push_back(convert(item));
    }
    return json;
  }
  if (node.is_table()) {
    Json json = Json::object();
    for (const auto& [key, value] : node.entries()) {
      json[key] = convert(value);
    }
    return json;
  }
  return nullptr;
}

// Returns the text with a number in place of each Infinity outside of strings: the largest that float32 has, nearly. It
// is as long, so that errors after it have the right column.
std::string without_infinity(std::string_view text) {
  constexpr std::string_view kInfinity = "Infinity", kLarge = "3.40e+38";
  std::string result(text);
  bool in_string = false;
  for (size_t i = 0; i < result.size(); ++i) {
    if (in_string && result[i] == '\\') {
      ++i;
    } else if (result[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && text.substr(i).starts_with(kInfinity)) {
      result.replace(i, kInfinity.size(), kLarge);
    }
  }
  return result;
}
}  // namespace

Node parse_json(std::string_view text, const std::string& name) {
  std::string finite;  // a copy only of the few files that need one
  if (text.find("Infinity") != std::string_view::npos) {
    finite = without_infinity(text);
    text = finite;
  }
  Builder builder(text, name);
  Json::sax_parse(text, &builder);
  return builder.take();
}

Node parse_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

std::string to_json(const Node& node, bool indented) {
  return convert(node).dump(indented ? 2 : -1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lehr
