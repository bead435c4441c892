// The ranks of a command that runs on several: processes of a launcher, or threads of this one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lehr/app/stop_notice.h"
#include "lehr/config/command_line.h"
#include "lehr/mesh/transport.h"
#include "lehr/train/config.h"
#include "lehr/train/ranks.h"

namespace lehr::app {

/// Settings of a command by which its ranks are connected.
struct RankSettings {
  std::string device = "auto";  ///< As training.device.
  train::CommConfig comm = {};
  StopNotice* notice = nullptr;  ///< Begins to listen when the ranks start; only the first rank writes the line.
};

/// Calls `body` once on each rank that runs in this process, with the rank's transport; null if there is one rank.
using StartRanks =
    std::function<void(const RankSettings& settings, const std::function<void(mesh::Transport* transport)>& body)>;

/// The rank of this process, as its launcher's variables describe it (mesh/rank_environment.h).
StartRanks launched_ranks();
/// `count` ranks that are threads.
StartRanks thread_ranks(int64_t count);

/// The mesh of the config's degrees on these ranks; one device, whatever the degrees, if `transport` is null.
train::Ranks ranks_of(const train::ParallelismConfig& parallelism, mesh::Transport* transport);

/// The keys of a mesh for a command that has no run's config: [parallelism] and [comm].
struct MeshConfig {
  train::ParallelismConfig parallelism;
  train::CommConfig comm;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const { parallelism.check(problems); }
};

/// Calls `body` on each rank of such a command with the keys on its command line, on `device`, and `notice` as in
/// RankSettings. Errors name their place.
void on_ranks_of(
    const Arguments& arguments,
    const std::string& device,
    const StartRanks& start,
    const std::function<void(const MeshConfig& config, mesh::Transport* transport)>& body,
    StopNotice* notice = nullptr);

}  // namespace lehr::app
