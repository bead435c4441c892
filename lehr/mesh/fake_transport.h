// A world of any size in one process, for planning: the shapes and sizes of what ranks exchange, without the others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lehr/mesh/transport.h"

namespace lehr::mesh {

/// One collective as the fake transport saw it.
struct FakeCollective {
  std::string name;   ///< "all_reduce"
  std::string group;  ///< The axes.
  int64_t size = 1;   ///< Ranks of the group.
  int64_t bytes = 0;  ///< Of this rank's input.
};

/// Stands for `rank` of `world_size`. Collectives return at once and send nothing: every other rank is taken to hold
/// what this one holds, so all_gather repeats the input, reduce_scatter gives this rank's chunk times the ranks,
/// all_reduce the tensor times the ranks, all_to_all rows of this rank, over and over, and a receive leaves its tensor
/// as it is. On meta tensors nothing is computed. `seen` is called with each; the store holds this rank's keys only.
std::unique_ptr<Transport> fake_transport(
    int64_t rank, int64_t world_size, std::function<void(const FakeCollective&)> seen = {});

}  // namespace lehr::mesh
