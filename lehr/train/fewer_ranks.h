// The mesh with which a run continues after ranks were lost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lehr/train/config.h"

namespace lehr::train {

/// A mesh for fewer ranks, and the keys that select it.
struct SmallerMesh {
  int64_t ranks = 0;
  std::vector<std::string> overrides;  ///< "--section.key=value", to follow the run's other arguments.
};

/// Throws a usage error if no run of `config` continues on fewer data-parallel ranks: for the task embedding, and for a
/// schedule from a file.
void require_fits_fewer_ranks(const TrainConfig& config);

/// Returns the mesh on which the run of `config`, which began on `begun` ranks, continues with `least` to `left` ranks:
/// on the most ranks that keep the degrees of tensor, context, expert and pipeline parallelism,
/// training.local_batch_size
/// and the sequences of a step, so that the order of data and, but for rounding, the losses stay. Replicas are given up
/// before shards: data_parallel_shard stays if it divides the data-parallel ranks that are left, otherwise it covers
/// them. Throws as require_fits_fewer_ranks, a usage error if no such mesh exists, and mesh_of's if `config` does not
/// fit `begun` ranks.
SmallerMesh fit_fewer_ranks(const TrainConfig& config, int64_t begun, int64_t left, int64_t least);

}  // namespace lehr::train
