// Block configs for tests of descriptors.
#pragma once

#include <cstdint>

#include "lehr/descriptor/block_config.h"

namespace lehr::descriptor::test {

/// A layer with these sizes; a size of 0 leaves its sub-block out.
inline BlockConfig block(int64_t kv_heads, int64_t width) {
  BlockConfig config{.attention = NoOpSubblock{}, .ffn = NoOpSubblock{}};
  if (kv_heads > 0) {
    config.attention = AttentionSubblock{kv_heads};
  }
  if (width > 0) {
    config.ffn = FFNSubblock{width};
  }
  return config;
}

}  // namespace lehr::descriptor::test
