// The device mesh of a run, and this rank's coordinates in it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lehr/mesh/group.h"
#include "lehr/mesh/transport.h"

namespace lehr::mesh {

/// Number of ranks along each axis. The world size is the product of all but expert_parallel, which takes its ranks
/// from data_parallel_shard, context_parallel and tensor_parallel.
struct DeviceMeshParameters {
  int64_t pipeline_parallel = 1;
  int64_t data_parallel_replicate = 1;
  int64_t data_parallel_shard = 1;
  int64_t context_parallel = 1;
  int64_t tensor_parallel = 1;
  int64_t expert_parallel = 1;

  int64_t world_size() const;
  /// Throws a usage error for degrees below 1, for an expert_parallel that does not divide data_parallel_shard x
  /// context_parallel x tensor_parallel, and for a product that is not `world_size`.
  void check(int64_t world_size) const;
  /// "dp_replicate 2 x dp_shard 4 x ep 4", without axes of one rank; or "one device".
  std::string describe() const;
  /// "dp_shard 1, tp 0": the coordinates of a rank on the axes of more than one rank; empty on one device.
  std::string coordinates(int64_t rank) const;
};

/// Names of axes. Ranks are numbered in row-major order over the axes of a domain, the last one fastest. The dense
/// domain is pp, dp_replicate, dp_shard, cp, tp. The expert domain is pp, dp_replicate, ep_shard, ep, where ep_shard x
/// ep covers the ranks of dp_shard x cp x tp, so that the ranks of an expert group are neighbours.
namespace axis {
inline const std::string pp = "pp";
inline const std::string dp_replicate = "dp_replicate";
inline const std::string dp_shard = "dp_shard";
inline const std::string cp = "cp";
inline const std::string tp = "tp";
inline const std::string ep = "ep";
/// The ranks that hold the same experts, within one replica: expert weights are sharded further over them.
inline const std::string ep_shard = "ep_shard";
/// dp_shard and cp as one axis, over which dense weights are fully sharded.
inline const std::string fsdp = "fsdp";
}  // namespace axis

/// This rank's view of the mesh. Groups are connected at their first use, so all ranks must request them in the same
/// order.
class DistributedContext {
 public:
  /// Throws as DeviceMeshParameters::check does. `transport` must outlive the context.
  DistributedContext(const DeviceMeshParameters& parameters, Transport& transport);
  ~DistributedContext();

  const DeviceMeshParameters& parameters() const { return parameters_; }
  Transport& transport() const { return transport_; }
  int64_t rank() const { return transport_.rank(); }
  int64_t world_size() const { return transport_.world_size(); }
  bool is_distributed() const { return world_size() > 1; }
  bool is_main_process() const { return rank() == 0; }

  /// Number of ranks along an axis, and this rank's index. `fsdp` is an axis too. Throws a usage error for an unknown
  /// name.
  int64_t size(const std::string& axis) const;
  int64_t index(const std::string& axis) const;

  /// Returns the ranks that differ from this one along these axes only, which must be of one domain (fsdp is of the
  /// dense one). An empty list yields the group of this rank alone.
  const Group& group(const std::vector<std::string>& axes);
  const Group& group(const std::string& axis) { return group(std::vector<std::string>{axis}); }
  /// All ranks.
  const Group& world();

  /// Sender and receiver of messages, as ranks of a group.
  struct Route {
    int64_t from;
    int64_t to;
  };
  /// Connects ranks that will send to each other, in the order of `routes`, if the transport would otherwise connect
  /// them at their first message: two ranks whose first messages are in different orders would deadlock. All members
  /// call it with the same routes, before the first message on any of them, even if the same ranks send as a group of
  /// another name.
  void connect_messages(const Group& group, const std::vector<Route>& routes);

  /// Number of ranks that see different sequences of a batch, dp_replicate x dp_shard, and this one's index.
  int64_t data_parallel_size() const;
  int64_t data_parallel_rank() const;

  /// Seconds that this rank's host has waited in the collectives and messages of all its groups.
  double seconds_waited() const;

  /// "dp_shard 1, tp 0": axes of one rank are left out; empty on one device.
  std::string coordinates() const;

 private:
  struct Axis {
    std::string name;
    int64_t size;
  };
  std::vector<Axis> domain_of(const std::vector<std::string>& axes) const;

  DeviceMeshParameters parameters_;
  Transport& transport_;
  std::map<std::string, std::unique_ptr<Group>> groups_;
};

}  // namespace lehr::mesh
