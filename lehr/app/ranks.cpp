#include "lehr/app/ranks.h"

#include <chrono>

#include "lehr/base/log.h"
#include "lehr/config/config.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/rank_environment.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/train/device.h"

namespace lehr::app {

namespace {
void listen(const RankSettings& settings, bool tells) {
  if (settings.notice != nullptr) {
    settings.notice->listen(tells);
  }
}
}  // namespace

StartRanks launched_ranks() {
  return [](const RankSettings& settings, const std::function<void(mesh::Transport*)>& body) {
    const auto ranks = mesh::read_rank_environment(mesh::environment_variables());
    if (ranks.world_size == 1) {
      listen(settings, true);
      body(nullptr);
      return;
    }
    train::set_library_variables(settings.device, /*deterministic=*/false);  // before there are threads
    listen(settings, ranks.rank == 0);
    mesh::ConnectOptions options = train::choose_rank_device(settings.device, ranks);
    options.init_timeout = std::chrono::seconds(settings.comm.init_timeout_seconds);
    options.timeout = std::chrono::seconds(settings.comm.train_timeout_seconds);
    options.on_cpu_fallback = [&](const std::string& reason) {
      Logger("", ranks.rank != 0).info("the ranks compute on CPUs, since some have no GPU of their own: {}", reason);
    };
    const auto transport = mesh::connect_ranks(ranks, options);
    mesh::run_connected(*transport, [&] { body(transport.get()); });
  };
}

StartRanks thread_ranks(int64_t count) {
  return [count](const RankSettings& settings, const std::function<void(mesh::Transport*)>& body) {
    listen(settings, true);
    mesh::run_ranks(
        count,
        [&](mesh::Transport& transport) { body(count > 1 ? &transport : nullptr); },
        std::chrono::seconds(settings.comm.train_timeout_seconds));
  };
}

train::Ranks ranks_of(const train::ParallelismConfig& parallelism, mesh::Transport* transport) {
  if (transport != nullptr) {
    return train::Ranks(parallelism, transport);
  }
  train::ParallelismConfig one_device;  // whatever the degrees: the config may be that of a sharded run
  one_device.fsdp_cpu_offload = parallelism.fsdp_cpu_offload;
  return train::Ranks(one_device, nullptr);
}

void MeshConfig::fields(FieldVisitor& v) {
  v.group("parallelism", parallelism, "Degrees of the device mesh and parallelism options.");
  v.group("comm", comm, "Timeouts of communication.");
}

void on_ranks_of(
    const Arguments& arguments,
    const std::string& device,
    const StartRanks& start,
    const std::function<void(const MeshConfig& config, mesh::Transport* transport)>& body,
    StopNotice* notice) {
  const Node sources = merge_sources({.file = {}, .overrides = arguments.overrides});
  const auto config = from_node<MeshConfig>(sources, "command line");
  start({.device = device, .comm = config.comm, .notice = notice}, [&](mesh::Transport* transport) {
    with_places(sources, [&] {
      body(config, transport);
      return 0;
    });
  });
}

}  // namespace lehr::app
