// A world of any size in one process, for planning: shapes and sizes of the communication, without the other ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lehr/mesh/transport.h"

namespace lehr::mesh {

/// One collective, as the fake transport recorded it.
struct FakeCollective {
  std::string name;   ///< "all_reduce"
  std::string group;  ///< The group's axes: "dp_shard,cp".
  int64_t size = 1;   ///< Ranks of the group.
  int64_t bytes = 0;  ///< Bytes of this rank's input.
};

/// A transport that simulates `rank` of `world_size`. Collectives return immediately and send nothing. Every other rank
/// is assumed to hold the same data as this one: all_gather repeats the input, reduce_scatter returns this rank's chunk
/// times the number of ranks, all_reduce the tensor times that number, all_to_all repeats rows of this rank, and a
/// receive leaves its tensor unchanged. On meta tensors nothing is computed. `seen` is called with each collective, and
/// `waited` with its number, from 0 in the order of `seen`, when its result is waited for. The store holds this rank's
/// keys only. `copies_reductions` is that of the simulated transport.
std::unique_ptr<Transport> fake_transport(
    int64_t rank,
    int64_t world_size,
    std::function<void(const FakeCollective&)> seen = {},
    std::function<void(size_t number)> waited = {},
    bool copies_reductions = false);

}  // namespace lehr::mesh
