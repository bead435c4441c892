#include "test/fuzz/json_mutator.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace lehr::fuzz {

namespace {
using Json = nlohmann::ordered_json;
using Random = std::minstd_rand;

size_t below(Random& random, size_t end) {
  return std::uniform_int_distribution<size_t>(0, end - 1)(random);
}

Json interesting(Random& random) {
  static const std::array<const char*, 24> kValues{
      "0",
      "1",
      "-1",
      "2",
      "4",
      "7",
      "64",
      "255",
      "65536",
      "2147483647",
      "4294967296",
      "9223372036854775807",
      "18446744073709551615",
      "1e308",
      "0.5",
      "null",
      "true",
      "false",
      "\"\"",
      "\"a\"",
      "[]",
      "{}",
      "[0,4]",
      "\"../x\""};
  return Json::parse(kValues[below(random, kValues.size())]);
}

void collect(Json& node, std::vector<Json*>& all) {
  all.push_back(&node);
  if (node.is_structured()) {
    for (auto& child : node) {
      collect(child, all);
    }
  }
}

void change_number(Json& node, Random& random) {
  // Unsigned, so that the largest numbers wrap around.
  const auto value = node.is_number_float() ? 0 : static_cast<uint64_t>(node.get<int64_t>());
  const std::array<uint64_t, 6> kChanges{value + 1, value - 1, value * 2, value / 2, 0 - value, value ^ 8};
  node = below(random, 4) == 0 ? interesting(random)
                               : Json(static_cast<int64_t>(kChanges[below(random, kChanges.size())]));
}

void change(Json& root, Random& random) {
  std::vector<Json*> all;
  collect(root, all);
  Json& node = *all[below(random, all.size())];
  const Json other = *all[below(random, all.size())];
  const size_t how = below(random, 8);
  if (how == 0) {
    node = interesting(random);
  } else if (how == 1) {
    node = other;
  } else if (node.is_number_integer()) {
    change_number(node, random);
  } else if (node.is_string()) {
    auto text = node.get<std::string>();
    text.insert(below(random, text.size() + 1), 1, static_cast<char>('a' + below(random, 4)));
    node = how == 2 ? Json(text + text) : how == 3 ? Json(text.substr(text.size() / 2)) : Json(text);
  } else if (node.is_array() && !node.empty() && how < 5) {
    node.erase(node.begin() + static_cast<std::ptrdiff_t>(below(random, node.size())));
  } else if (node.is_array()) {
    node.push_back(other);
  } else if (node.is_object() && !node.empty() && how < 4) {
    auto entry = node.begin();
    std::advance(entry, static_cast<std::ptrdiff_t>(below(random, node.size())));
    const std::string key = entry.key();
    const Json value = entry.value();
    node.erase(key);
    if (how == 3) {
      node[key + "2"] = value;
    }
  } else if (node.is_object()) {
    static const std::array<const char*, 6> kKeys{"a", "type", "shape", "__metadata__", "no_op", "content"};
    node[below(random, 2) == 0 && other.is_string() ? other.get<std::string>() : kKeys[below(random, 6)]] = other;
  }
}
}  // namespace

size_t mutate_json(uint8_t* data, size_t size, size_t most, unsigned seed) {
  Random random(seed);
  Json root = below(random, 4) == 0 ? Json(Json::value_t::discarded)
                                    : Json::parse(data, data + size, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) {
    return LLVMFuzzerMutate(data, size, most);
  }
  for (size_t changes = 1 + below(random, 3); changes > 0; --changes) {
    change(root, random);
  }
  const std::string text = root.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > most) {
    return LLVMFuzzerMutate(data, size, most);
  }
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace lehr::fuzz
