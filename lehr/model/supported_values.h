// Keys of config.json of which one value is implemented.
#pragma once

#include <cstdint>

#include "lehr/config/node.h"

namespace lehr::model {

/// Throws a usage error that names the key if it has another value than this one. A key that is absent or null has it.
void require_supported(const Node& config, const char* key, bool expected);
void require_supported(const Node& config, const char* key, int64_t expected);
void require_supported(const Node& config, const char* key, double expected);
void require_supported(const Node& config, const char* key, const char* expected);

}  // namespace lehr::model
