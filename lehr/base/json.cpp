#include "lehr/base/json.h"

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

Node convert(const Json& json, const std::string& name, const std::string& key) {
  Node node;
  switch (json.type()) {
    case Json::value_t::boolean:
      node = Node(json.get<bool>());
      break;
    case Json::value_t::number_integer:
      node = Node(json.get<int64_t>());
      break;
    case Json::value_t::number_unsigned:
      require(
          json.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX),
          "{}: {}: the integer {} is too large",
          name,
          key,
          json.get<uint64_t>());
      node = Node(json.get<int64_t>());
      break;
    case Json::value_t::number_float:
      node = Node(json.get<double>());
      break;
    case Json::value_t::string:
      node = Node(json.get<std::string>());
      break;
    case Json::value_t::array:
      node = Node::make_list();
      for (size_t i = 0; i < json.size(); ++i) {
        node.push_back(convert(json[i], name, fmt::format("{}[{}]", key, i)));
      }
      break;
    case Json::value_t::object:
      node = Node::make_table();
      for (const auto& [entry, value] : json.items()) {
        node.mutable_entries().emplace_back(entry, convert(value, name, key.empty() ? entry : key + "." + entry));
      }
      break;
    default:
      break;
  }
  node.set_origin({.file = name});
  node.set_key(key);
  return node;
}

// Rejects duplicate keys in an object, of which the parser would keep the last, and deep nesting. Receives each value
// as it is parsed.
class KeysOnce {
 public:
  explicit KeysOnce(const std::string& name) : name_(name) {}

  void see(Json::parse_event_t event, const Json& value) {
    switch (event) {
      case Json::parse_event_t::key: {
        Level& object = levels_.back();
        object.key = value.get<std::string>();
        if (!object.keys.insert(object.key).second) {
          fail("{}: {}: duplicate key", name_, place());
        }
        break;
      }
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        next_item();
        if (levels_.size() >= kMostLevels) {
          fail("{}: {}: nested more than {} levels deep", name_, place(), kMostLevels);
        }
        levels_.push_back({.is_list = event == Json::parse_event_t::array_start});
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        levels_.pop_back();
        break;
      case Json::parse_event_t::value:
        next_item();
        break;
    }
  }

  // The key of the value that was seen last, or of the next one.
  std::string place(bool next = false) const {
    std::string place;
    for (const Level& level : levels_) {
      const int64_t item = next && &level == &levels_.back() ? level.items : level.items - 1;
      place += level.is_list ? fmt::format("[{}]", item) : (place.empty() ? "" : ".") + level.key;
    }
    return place;
  }

 private:
  // Far more than any document has, and few enough for functions that call themselves per level.
  static constexpr size_t kMostLevels = 256;

  // An open object or list.
  struct Level {
    bool is_list = false;
    int64_t items = 0;
    std::string key = {};  // the current one
    std::unordered_set<std::string> keys = {};
  };

  void next_item() {
    if (!levels_.empty()) {
      ++levels_.back().items;
    }
  }

  const std::string& name_;
  std::vector<Level> levels_;
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
}  // namespace

Node parse_json(std::string_view text, const std::string& name) {
  KeysOnce keys(name);
  try {
    const auto see = [&](int, Json::parse_event_t event, const Json& value) {
      keys.see(event, value);
      return true;
    };
    return convert(Json::parse(text, see), name, "");
  } catch (const Json::parse_error& error) {
    const auto end = text.begin() + static_cast<long>(std::min(error.byte, text.size()));
    const auto line = 1 + std::count(text.begin(), end, '\n');
    const auto last_break = std::find(std::make_reverse_iterator(end), text.rend(), '\n');
    const auto column = std::distance(std::make_reverse_iterator(end), last_break);
    std::string what = error.what();
    if (const auto colon = what.find(": ", what.find("column")); colon != std::string::npos) {
      what = what.substr(colon + 2);
    }
    fail("{}:{}:{}: invalid JSON: {}", name, line, column, what);
  } catch (const Json::exception& error) {  // a number that does not fit
    const std::string place = keys.place(/*next=*/true);
    const std::string what = error.what();
    fail("{}: {}{}invalid JSON: {}", name, place, place.empty() ? "" : ": ", what.substr(what.find("] ") + 2));
  }
}

Node parse_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

std::string to_json(const Node& node, bool indented) {
  return convert(node).dump(indented ? 2 : -1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lehr
