#include "lehr/plan/links.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <vector>

#include "lehr/base/error.h"

namespace lehr::plan {

namespace {
// The ranks of an axis: their number, and the distance between neighbours in global rank numbers.
struct AxisRanks {
  int64_t size;
  int64_t stride;
};

AxisRanks axis_ranks(const std::string& name, const mesh::DeviceMeshParameters& mesh) {
  // Dense axes order ranks as pp, dp_replicate, dp_shard, cp, tp, with tp innermost; expert axes split a replica into
  // ep_shard and ep, with ep innermost.
  const int64_t tp = mesh.tensor_parallel;
  const int64_t cp = mesh.context_parallel;
  const int64_t replica = mesh.data_parallel_shard * cp * tp;
  const int64_t stage = mesh.data_parallel_replicate * replica;
  const std::pair<std::string, AxisRanks> axes[] = {
      {mesh::axis::tp, {tp, 1}},
      {mesh::axis::cp, {cp, tp}},
      {mesh::axis::dp_shard, {mesh.data_parallel_shard, tp * cp}},
      {mesh::axis::fsdp, {mesh.data_parallel_shard * cp, tp}},
      {mesh::axis::ep, {mesh.expert_parallel, 1}},
      {mesh::axis::ep_shard, {replica / mesh.expert_parallel, mesh.expert_parallel}},
      {mesh::axis::dp_replicate, {mesh.data_parallel_replicate, replica}},
      {mesh::axis::pp, {mesh.pipeline_parallel, stage}},
  };
  for (const auto& [known, ranks] : axes) {
    if (known == name) {
      return ranks;
    }
  }
  fail("plan: a mesh has no axis '{}'", name);
}

struct Link {
  double bandwidth;
  double latency;
};
// Between `ranks` devices of a node.
Link node_link(const Machine& machine, int64_t ranks) {
  const double share = machine.node_direct_links && machine.ranks_per_node > 1 && ranks > 1
                           ? static_cast<double>(ranks - 1) / static_cast<double>(machine.ranks_per_node - 1)
                           : 1;
  return {share * machine.node_gb_per_second * machine.achieved_link_fraction * 1e9, machine.node_latency_us * 1e-6};
}
Link network_link(const Machine& machine) {
  return {machine.network_gb_per_second * machine.achieved_link_fraction * 1e9, machine.network_latency_us * 1e-6};
}
}  // namespace

GroupPlacement place_group(const std::string& axes, const mesh::DeviceMeshParameters& mesh, int64_t ranks_per_node) {
  // Global ranks of the group that contains rank 0.
  std::vector<int64_t> ranks{0};
  std::istringstream names(axes == "none" ? "" : axes);
  for (std::string name; std::getline(names, name, ',');) {
    const AxisRanks axis = axis_ranks(name, mesh);
    const size_t before = ranks.size();
    for (int64_t index = 1; index < axis.size; ++index) {
      for (size_t i = 0; i < before; ++i) {
        ranks.push_back(ranks[i] + index * axis.stride);
      }
    }
  }
  GroupPlacement group{.size = static_cast<int64_t>(ranks.size())};
  group.per_node = std::count_if(ranks.begin(), ranks.end(), [&](int64_t rank) { return rank < ranks_per_node; });
  group.nodes = (group.size + group.per_node - 1) / group.per_node;
  return group;
}

GroupPlacement place_ranks(const std::vector<int64_t>& ranks, int64_t ranks_per_node) {
  std::map<int64_t, int64_t> on_node;
  for (const int64_t rank : ranks) {
    ++on_node[rank / ranks_per_node];
  }
  const auto fewest = std::min_element(
      on_node.begin(), on_node.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return {
      .size = static_cast<int64_t>(ranks.size()),
      .per_node = fewest->second,
      .nodes = static_cast<int64_t>(on_node.size())};
}

LinkTime link_time(const Machine& machine, const GroupPlacement& group, const std::string& collective, double bytes) {
  if (group.size <= 1) {
    return {};
  }
  const Link node = node_link(machine, group.per_node);
  const Link network = network_link(machine);
  if (collective == "send" || collective == "receive") {
    return group.nodes > 1 ? LinkTime{.latency = network.latency, .network = bytes / network.bandwidth}
                           : LinkTime{.latency = node.latency, .node = bytes / node_link(machine, 2).bandwidth};
  }
  const auto n = static_cast<double>(group.size);
  const auto m = static_cast<double>(group.per_node);
  const auto k = static_cast<double>(group.nodes);
  const double latency = (m - 1) * node.latency + std::ceil(std::log2(k)) * network.latency;
  if (collective == "all_to_all") {
    return {
        .latency = latency,
        .node = bytes * (m - 1) / n / node.bandwidth,
        .network = bytes * (n - m) / n / network.bandwidth};
  }
  if (collective == "barrier") {
    return {.latency = latency};
  }
  // Within a node each rank sends (m - 1) / m of all bytes; between nodes the m ranks of a node share the traffic.
  const double all = collective == "all_gather" ? n * bytes : bytes;
  const double times = collective.starts_with("all_reduce") ? 2 : 1;
  return {
      .latency = times * latency,
      .node = times * all * (m - 1) / m / node.bandwidth,
      .network = times * all * (k - 1) / k / (m * network.bandwidth)};
}

double collective_seconds(
    const Machine& machine, const GroupPlacement& group, const std::string& collective, double bytes) {
  return link_time(machine, group, collective, bytes).seconds();
}

double transfer_seconds(
    const Machine& machine, const mesh::DeviceMeshParameters& mesh, int64_t from, int64_t to, double bytes) {
  const int64_t stride = axis_ranks(mesh::axis::pp, mesh).stride;
  const bool near = from * stride / machine.ranks_per_node == to * stride / machine.ranks_per_node;
  const Link link = near ? node_link(machine, 2) : network_link(machine);
  return link.latency + bytes / link.bandwidth;
}

}  // namespace lehr::plan
