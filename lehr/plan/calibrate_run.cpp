#include "lehr/plan/calibrate_run.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/profile_clock.h"
#include "lehr/plan/fraction_of.h"
#include "lehr/plan/make_plan.h"
#include "lehr/plan/stage_run.h"

namespace lehr::plan {

namespace {
using Clock = metric::ThroughputMeter::Clock;

// The same model and micro-batch on one rank.
train::TrainConfig on_one_rank(train::TrainConfig config) {
  const int64_t rows = train::microbatch_rows(config);
  auto& mesh = config.parallelism;
  mesh.pipeline_parallel_degree = mesh.data_parallel_replicate_degree = mesh.data_parallel_shard_degree = 1;
  mesh.pipeline_parallel_microbatch_size = train::ParallelismConfig{}.pipeline_parallel_microbatch_size;
  mesh.context_parallel_degree = mesh.tensor_parallel_degree = mesh.expert_parallel_degree = 1;
  config.training.local_batch_size = config.training.global_batch_size = rows;
  return config;
}

// Seconds of forward and backward of a micro-batch.
struct Seconds {
  double matmuls = 0;
  double attention = 0;
  double others = 0;   // the other operators
  double between = 0;  // no operator runs

  double sum() const { return matmuls + attention + others + between; }
};

class Microbatch {
 public:
  Microbatch(const ResolvedRun& run, const train::TrainSpec& spec) : stage_(run.config, spec, *run.args, {}, nullptr) {
    stage_.allocate(at::kCPU);
  }

  double seconds(const Clock& clock) {
    begin();
    const double began = clock();
    compute();
    return clock() - began;
  }

  Seconds profile(const Clock& clock) {
    begin();
    OperatorProfile profile(profile_clock(clock));
    profile.start();
    compute();
    profile.stop();
    Seconds seconds;
    for (size_t kind = 0; kind < kOperatorKinds; ++kind) {
      part_of(seconds, static_cast<OperatorKind>(kind)) += profile.kinds()[kind].seconds;
    }
    return seconds;
  }

 private:
  void begin() {
    stage_.clear_gradients();
    stage_.begin_step(1);
  }
  void compute() {
    stage_.forward(0);
    stage_.backward(0);
    stage_.finish_step();
  }
  static double& part_of(Seconds& seconds, OperatorKind kind) {
    switch (kind) {
      case OperatorKind::matmul:
        return seconds.matmuls;
      case OperatorKind::attention:
        return seconds.attention;
      case OperatorKind::between:
        return seconds.between;
      default:
        return seconds.others;
    }
  }

  StageRun stage_;
};

// Returns the seconds of the fastest micro-batch. Its parts are in the proportions of the fastest one with a profile,
// which costs about a microsecond per operator.
Seconds fastest(Microbatch& microbatch, double seconds, const Clock& clock) {
  constexpr int kLeast = 3;
  microbatch.seconds(clock);  // warm-up: fresh memory, a library's first call
  double plain = microbatch.seconds(clock);
  Seconds profiled = microbatch.profile(clock);
  const double deadline = clock() + seconds;
  for (int done = 1; done < kLeast || clock() < deadline; ++done) {
    plain = std::min(plain, microbatch.seconds(clock));
    profiled = std::min(
        profiled, microbatch.profile(clock), [](const Seconds& a, const Seconds& b) { return a.sum() < b.sum(); });
  }
  const double scale = plain / profiled.sum();
  return {scale * profiled.matmuls, scale * profiled.attention, scale * profiled.others, scale * profiled.between};
}

// Returns `before` if the model has no such operators.
double fraction_or(double before, double flops, double seconds, double peak, const char* what) {
  return flops > 0 ? fraction_of(flops / seconds, peak / 1e12, what) : before;
}
}  // namespace

Machine calibrate_cpu_for(
    const Machine& cpu,
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    double seconds,
    const Clock& clock) {
  const Plan plan = make_plan(on_one_rank(config), spec, cpu, {.devices = 1, .compare_schedules = false});
  require(
      plan.fits(),
      "lehr plan --calibrate: a step of this run on one rank needs {:.1f} GB, and this computer has {:.1f} GB; lower "
      "training.local_batch_size, training.seq_len or model.args.num_hidden_layers for the calibration",
      plan.peak_bytes() / 1e9,
      cpu.usable_bytes() / 1e9);
  Microbatch microbatch(plan.run, spec);
  const Seconds measured = fastest(microbatch, seconds, clock);

  const StageMeasurement& stage = plan.stages.front().measured;
  const auto dtype = train::compute_type(plan.run.config.training);
  const double peak = cpu.peak_flops(dtype);
  const double matmuls = fraction_or(
      cpu.matmul_fraction(dtype),
      stage.forward.matmul_flops + stage.backward.matmul_flops,
      measured.matmuls,
      peak,
      "the matmuls of this run");
  const double attention = fraction_or(
      cpu.attention_fraction(dtype),
      stage.forward.attention_flops + stage.backward.attention_flops,
      measured.attention,
      peak,
      "the attention of this run");
  Machine machine = cpu;
  if (dtype == at::kBFloat16) {
    machine.achieved_fraction_bfloat16 = matmuls;
    machine.achieved_attention_fraction_bfloat16 = attention;
    machine.achieved_expert_fraction = machine.achieved_fraction;  // a ratio to the matmuls, which holds in bfloat16
  } else {
    machine.achieved_fraction = machine.achieved_expert_fraction = matmuls;
    machine.achieved_attention_fraction = attention;
  }
  const auto bytes = static_cast<double>(stage.forward.pointwise_bytes + stage.backward.pointwise_bytes);
  machine.achieved_memory_fraction = bytes / measured.others / (1e9 * cpu.memory_gb_per_second);
  machine.layer_overhead_us = 1e6 * measured.between / 2 / static_cast<double>(stage.num_layers);
  return machine;
}

}  // namespace lehr::plan
