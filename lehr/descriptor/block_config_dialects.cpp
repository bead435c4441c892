#include "lehr/descriptor/block_config_dialects.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/config/suggest.h"

namespace lehr::descriptor {

void refuse(const Node& value, const std::string& why) {
  fail("{}: {}: {}", value.origin(), value.key(), why);
}

Entries::Entries(const Node& table) : table_(table) {
  table_.entries();  // throws if it is not a table
}

const Node* Entries::get(const char* key) {
  asked_.emplace_back(key);
  const Node* found = table_.find(key);
  return found != nullptr && !found->is_null() ? found : nullptr;
}

int64_t Entries::integer(const char* key) {
  const Node* found = get(key);
  return found != nullptr ? found->as_int() : table_.at(key).as_int();
}

bool Entries::flag(const char* key) {
  const Node* found = get(key);
  return found != nullptr && found->as_bool();
}

void Entries::refuse_flag(const char* key, const char* what) {
  if (flag(key)) {
    refuse(*table_.find(key), fmt::format("expected false, found true; {} not supported", what));
  }
}

void Entries::refuse_value(const char* key, const char* what) {
  if (const Node* found = get(key)) {
    refuse(*found, fmt::format("expected null, found {}; {} not supported", found->describe(), what));
  }
}

void Entries::finish() const {
  for (const auto& [key, value] : table_.entries()) {
    if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) {
      const auto nearest = suggest(key, asked_);
      fail(
          "{}: {}: '{}' is not known{}; known: {}",
          table_.origin(),
          table_.key(),
          key,
          nearest ? fmt::format(", did you mean '{}'", *nearest) : "",
          fmt::join(asked_, ", "));
    }
  }
}

}  // namespace lehr::descriptor
