// Options of the parallelize_* functions of the model families.
#pragma once

#include "lehr/shard/context_parallel.h"
#include "lehr/shard/fully_shard.h"

namespace lehr::shard {

/// These options change speed and memory, not results.
struct ParallelizeOptions {
  FullyShardOptions fully_shard = {};
  ContextParallelMethod context_method = ContextParallelMethod::all_gather;
  int64_t expert_parts = 1;  ///< See parallelize_experts.
};

}  // namespace lehr::shard
