// Comparison of replicas by hashes of their bits, to find silent data corruption.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/module.h"

namespace lehr::shard {

/// Returns a 64-bit hash of a tensor's bits: int64, 0-dimensional, on the tensor's device; the host does not wait.
/// Tensors that differ in the bits of one element never have the same hash; others do with a chance of some 2^-64.
at::Tensor hash_of_bits(const at::Tensor& tensor);

/// A shard that several ranks hold, with bits that differ.
struct ReplicaDifference {
  std::string parameter = {};
  bool gradient = false;            ///< Its gradient differs, not its value.
  std::vector<int64_t> ranks = {};  ///< The ranks that differ from the majority; without a majority all that hold it.
  bool majority = false;
};

/// Compares the values, and the gradients where they exist, of all parameters among the ranks that hold the same shard.
/// Gradients must be synchronized. Returns the first eight differences, equally on all ranks; all ranks of the world
/// must call it. Sends 24 bytes per parameter, and makes the host wait.
std::vector<ReplicaDifference> compare_replicas(
    const std::vector<nn::NamedParameter>& parameters, mesh::DistributedContext& context);

}  // namespace lehr::shard
