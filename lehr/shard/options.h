// What the parallelize_* functions of the model families are told beyond the mesh.
#pragma once

#include <optional>

#include "lehr/base/torch.h"

namespace lehr::shard {

/// When a fully sharded unit gives its gathered weights back after forward.
enum class ReshardPolicy {
  by_default,  ///< After each layer, but not after the last: backward begins there.
  always,
  never,
};

/// How fully sharded units compute; see docs/parallelism.md.
struct ParallelizeOptions {
  std::optional<at::ScalarType> compute_dtype = {};  ///< Type that weights are gathered in; their own if not given.
  std::optional<at::ScalarType> reduce_dtype = {};   ///< Type that gradients are summed in; their own if not given.
  ReshardPolicy reshard_after_forward = ReshardPolicy::by_default;
};

}  // namespace lehr::shard
