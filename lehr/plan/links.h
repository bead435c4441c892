// Time of collectives on a machine: the alpha-beta model over the placement of a group's ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/plan/machine.h"

namespace lehr::plan {

/// The placement of the ranks of a collective on nodes.
struct GroupPlacement {
  int64_t size = 1;
  int64_t per_node = 1;  ///< Ranks of the group per node.
  int64_t nodes = 1;     ///< Nodes that the group spans.
  bool operator==(const GroupPlacement&) const = default;
};

/// Returns the placement of `axes`: one name, or several separated by commas, all of one domain
/// (mesh/distributed_context.h). Ranks fill nodes in order, so tp is the first axis to fit into a node, and pp the
/// last. "none" is one rank. Throws a usage error for an unknown axis.
GroupPlacement place_group(const std::string& axes, const mesh::DeviceMeshParameters& mesh, int64_t ranks_per_node);

/// Returns the placement of these ranks of the world: if nodes have different numbers, per_node is the smallest.
GroupPlacement place_ranks(const std::vector<int64_t>& ranks, int64_t ranks_per_node);

/// The parts of a collective's time on idle links.
struct LinkTime {
  double latency = 0;  ///< Seconds in which no link is busy.
  double node = 0;     ///< Seconds for which the links within a node are busy,
  double network = 0;  ///< and those between nodes, at the same time.
  double seconds() const { return latency + transfer(); }
  double transfer() const { return node > network ? node : network; }
};

/// Returns the parts of collective_seconds.
LinkTime link_time(const Machine& machine, const GroupPlacement& group, const std::string& collective, double bytes);

/// Returns the seconds of a collective, by its name in mesh::FakeCollective, for `bytes` of this rank's input (for send
/// and receive: of the message).
///
/// With n ranks, m of them on each of k nodes, latencies a and bandwidths b of the links within and between nodes:
///
/// - all_gather, reduce_scatter, broadcast of N bytes in total: (m - 1) a_node + ceil(log2(k)) a_network + the longer
///   of (m - 1) / m N / b_node and (k - 1) / k N / (m b_network), since the m devices of a node share the traffic
///   between nodes.
/// - all_reduce: twice that.
/// - all_to_all of B bytes per rank: the same latencies, and the longer of B (m - 1) / n / b_node and B (n - m) / n /
///   b_network.
/// - send, receive: one latency and the bytes, over the network if the group spans several nodes.
///
/// With Machine::node_direct_links, b_node is (m - 1) / (n - 1) of it for m of a node's n devices.
///
/// The tree of depth log2(k) counts for latency only; NCCL uses such trees for small messages and rings for large ones.
double collective_seconds(
    const Machine& machine, const GroupPlacement& group, const std::string& collective, double bytes);

/// Returns the seconds of a message between two ranks along pp.
double transfer_seconds(
    const Machine& machine, const mesh::DeviceMeshParameters& mesh, int64_t from, int64_t to, double bytes);

}  // namespace lehr::plan
