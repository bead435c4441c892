#include "lehr/model/supported_values.h"

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"

namespace lehr::model {

namespace {
template <class Value>
void require_value(const Node& config, const char* key, const Value& expected, const Value& found) {
  require(
      found == expected, "{}: {}: expected {}, found {}; this is not supported", config.origin(), key, expected, found);
}
}  // namespace

void require_supported(const Node& config, const char* key, bool expected) {
  require_value(config, key, expected, bool_or(config, key, expected));
}

void require_supported(const Node& config, const char* key, int64_t expected) {
  require_value(config, key, expected, int_or(config, key, expected));
}

void require_supported(const Node& config, const char* key, double expected) {
  require_value(config, key, expected, double_or(config, key, expected));
}

void require_supported(const Node& config, const char* key, const char* expected) {
  const Node* found = config.find(key);
  const std::string name = expected;
  require_value(config, key, name, found == nullptr || found->is_null() ? name : found->as_string());
}

}  // namespace lehr::model
