// Pipeline bubble in the executor, compared with the simulator: four ranks as threads, whose computations are sleeps.
// Prints the simulated and the measured bubble of each schedule.
//
// Sleeping ranks need no core, so two cores are enough for four ranks. Needs an idle machine: a rank that wakes up late
// delays others.
#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <mutex>
#include <string>
#include <thread>

#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/executor.h"
#include "lehr/pipeline/schedules.h"
#include "lehr/pipeline/simulate.h"

namespace {
using namespace lehr;  // NOLINT(google-build-using-namespace)
using Clock = std::chrono::steady_clock;

constexpr int64_t kRanks = 4;
constexpr int64_t kMicrobatches = 32;

class Sleeper : public pipeline::StageRunner {
 public:
  explicit Sleeper(Clock::duration unit) : unit_(unit) {}
  pipeline::TensorDict input_specs(int64_t) const override {
    return {{"hidden_states", at::empty({1}, at::TensorOptions().device(at::kMeta))}};
  }
  pipeline::TensorDict output_specs(int64_t m) const override { return input_specs(m); }
  pipeline::TensorDict forward(int64_t, pipeline::TensorDict) override { return after(1); }
  pipeline::TensorDict backward(int64_t, pipeline::TensorDict, bool later) override { return after(later ? 1 : 2); }
  void backward_weight(int64_t) override { after(1); }

 private:
  pipeline::TensorDict after(int64_t units) const {
    const auto end = Clock::now() + units * unit_;
    std::this_thread::sleep_until(end - std::chrono::microseconds(300));
    while (Clock::now() < end) {  // spins to the end: the OS wakes threads late
    }
    return {{"hidden_states", at::zeros({1})}};
  }
  Clock::duration unit_;
};

// Returns the share of the ranks' time in which they idle.
double measure(const pipeline::Program& program, Clock::duration unit) {
  std::mutex mutex;
  double begin = std::numeric_limits<double>::max();
  double end = 0;
  double busy = 0;
  mesh::run_ranks(program.num_ranks(), [&](mesh::Transport& transport) {
    mesh::DistributedContext context({.pipeline_parallel = program.num_ranks()}, transport);
    const mesh::Group& pp = context.group(mesh::axis::pp);
    Sleeper sleeper(unit);
    std::map<int64_t, pipeline::StageRunner*> runners;
    for (const int64_t stage : program.stages_of(pp.rank())) {
      runners[stage] = &sleeper;
    }
    pp.barrier();
    const auto watch = [&](const pipeline::Action& action, double from, double to) {
      if (action.is_compute()) {
        const std::lock_guard lock(mutex);
        begin = std::min(begin, from);
        end = std::max(end, to);
        const int64_t units = action.kind == pipeline::ActionKind::backward_full ? 2 : 1;
        busy += static_cast<double>(units) * std::chrono::duration<double>(unit).count();
      }
    };
    pipeline::run_program(program, pp.rank(), &pp, runners, {.on_action = watch});
  });
  return 1 - busy / (static_cast<double>(program.num_ranks()) * (end - begin));
}
}  // namespace

int main() {
  fmt::print("{} ranks, {} micro-batches, F = I = W\n\n", kRanks, kMicrobatches);
  fmt::print("| schedule | simulated | run |\n| --- | --- | --- |\n");
  for (const pipeline::ScheduleInfo& info : pipeline::all_schedules()) {
    if (!info.has_backward) {
      continue;
    }
    const auto program = pipeline::add_communication(pipeline::build_program(
        {.schedule = info.schedule,
         .num_ranks = kRanks,
         .num_stages_per_rank = info.default_stages_per_rank,
         .num_microbatches = kMicrobatches}));
    // The same work per rank for any number of stages.
    const auto unit = std::chrono::microseconds(60'000 / info.default_stages_per_rank);
    fmt::print(
        "| {} x{} | {:.1f} % | {:.1f} % |\n",
        info.name,
        info.default_stages_per_rank,
        100 * pipeline::simulate(program, {}).bubble_share(),
        100 * measure(program, unit));
    std::fflush(stdout);
  }
}
