#include "lehr/emulate/emulate.h"

#include <chrono>

#include "lehr/base/error.h"
#include "lehr/emulate/rank_run.h"
#include "lehr/emulate/seconds.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/plan/stage_run.h"

namespace lehr::emulate {

void check_emulation(const plan::ResolvedRun& run, const plan::Machine& machine, const plan::PeerDesign& peer) {
  const int64_t world = run.mesh.world_size();
  require(
      world <= kMostRanks,
      "emulation: expected at most {} ranks, found {}; emulate a smaller mesh, for instance with fewer data ranks and "
      "the same micro-batches on each",
      kMostRanks,
      world);
  require(peer == plan::PeerDesign{}, "emulation: another system's design (--peer) has no program to run");
  require(
      run.config.optimizer.name != optim::OptimizerKind::muon,
      "optimizer.name: an emulation does not run Muon's iterations on whole matrices; set another optimizer");
  require(
      machine.rank_deviation == 0,
      "machine.rank_deviation: emulated ranks are equally fast; set it to 0, found {}",
      machine.rank_deviation);
}

Emulation emulate(const plan::Plan& plan, const train::TrainSpec& spec) {
  check_emulation(plan.run, plan.machine, plan.peer);
  const int64_t world = plan.run.mesh.world_size();
  const train::Batch batch = plan::synthetic_batch(
      plan.run.config, plan.run.microbatches * plan.run.rows, plan.run.args->vocab_size(), at::kCPU);
  std::vector<Recording> recordings(static_cast<size_t>(world));
  mesh::run_ranks(
      world,
      [&](mesh::Transport& hosts) {
        recordings[static_cast<size_t>(hosts.rank())] = record_step(plan, spec, batch, hosts);
      },
      std::chrono::hours(1));
  std::vector<std::vector<double>> seconds;
  for (const Recording& recording : recordings) {
    seconds.push_back(seconds_of(recording, plan));
  }
  Emulation result{.step = replay(recordings, seconds, plan.machine)};
  result.mfu = plan.mfu * plan.step_seconds / result.step.step_seconds;
  return result;
}

}  // namespace lehr::emulate
