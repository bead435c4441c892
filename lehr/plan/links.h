// How long collectives take on a machine: where the ranks of a mesh axis stand, and the alpha-beta model.
#pragma once

#include <cstdint>
#include <string>

#include "lehr/mesh/distributed_context.h"
#include "lehr/plan/machine.h"

namespace lehr::plan {

/// The ranks that a collective runs over, as nodes see them.
struct GroupPlacement {
  int64_t size = 1;
  int64_t per_node = 1;  ///< Of them on one node.
  int64_t nodes = 1;     ///< That they are on.
  bool operator==(const GroupPlacement&) const = default;
};

/// Where the ranks of `axes` (one name, or several parted by commas, all of one domain: mesh/distributed_context.h)
/// stand when ranks fill nodes in their order, so that tp is within a node before all others, and pp the last to be.
/// "none" is one rank. Throws a usage error for an unknown axis.
GroupPlacement place_group(const std::string& axes, const mesh::DeviceMeshParameters& mesh, int64_t ranks_per_node);

/// Seconds of a collective by the name that mesh::FakeCollective gives it, of `bytes` of this rank's input (send,
/// receive: of the message).
///
/// With n ranks, m of them on each of k nodes, latencies a and bandwidths b of the two kinds of links:
///
/// - all_gather, reduce_scatter, broadcast of N bytes in all: (m - 1) a_node + log2(k) a_network + the longer of
///   (m - 1) / m N / b_node and (k - 1) / k N / (m b_network), since m devices of a node share what crosses to others.
/// - all_reduce: twice that.
/// - all_to_all of B bytes a rank: the same latencies, and the longer of B (m - 1) / n / b_node and
///   B (n - m) / n / b_network.
/// - send, receive: one latency and the bytes, over the network if the group is on several nodes.
///
/// The tree of log2(k) is for latency only; NCCL chooses such trees for small messages and rings for large ones.
double collective_seconds(
    const Machine& machine, const GroupPlacement& group, const std::string& collective, double bytes);

/// Seconds of a message from a rank along pp to another one.
double transfer_seconds(
    const Machine& machine, const mesh::DeviceMeshParameters& mesh, int64_t from, int64_t to, double bytes);

}  // namespace lehr::plan
