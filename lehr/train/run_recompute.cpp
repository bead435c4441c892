#include "lehr/train/run_recompute.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/memory/granted_memory.h"
#include "lehr/mesh/exception_text.h"

namespace lehr::train {

namespace {
constexpr double kUsed = 0.9;  // the rest is not in the forecast: data, threads, fragments of the heap

// The memory of the rank that has least.
struct Granted {
  double bytes = 0;
  bool on_several_machines = false;
};

// Ranks on one machine have equal shares.
Granted least_of_ranks(const Ranks& ranks, double mine) {
  const auto id = static_cast<double>(std::hash<std::string>{}(memory_domain()) >> 12);  // float64 holds it exactly
  const at::Tensor rows = ranks.gather({id, mine});
  const auto value = rows.accessor<double, 2>();
  std::map<double, double> ranks_of;
  for (int64_t rank = 0; rank < rows.size(0); ++rank) {
    ++ranks_of[value[rank][0]];
  }
  double least = std::numeric_limits<double>::max();
  for (int64_t rank = 0; rank < rows.size(0); ++rank) {
    least = std::min(least, value[rank][1] / ranks_of[value[rank][0]]);
  }
  return {.bytes = least, .on_several_machines = ranks_of.size() > 1};
}

// Returns the bytes that this rank's machine grants; -1 if they are not known.
double granted_here(const RunEnvironment& environment) {
  if (environment.memory) {
    return static_cast<double>(*environment.memory);
  }
  try {
    return kUsed * static_cast<double>(granted_memory().bytes);
  } catch (const Error&) {
    return -1;  // not thrown: the other ranks wait for this one's number
  }
}

// Why there can be no forecast; empty if there can.
std::string why_none(const Run& run, const RunEnvironment& environment) {
  if (!run.device.is_cpu()) {
    return "the memory of a step on a GPU is not predicted exactly";
  }
  if (run.config.parallelism.fsdp_cpu_offload) {
    return "the memory of a step with parallelism.fsdp_cpu_offload is not predicted";
  }
  return environment.forecast ? "" : "the memory of a step is not predicted";
}

RunRecompute usual(Run& run, const std::string& reason) {
  const RecomputeCandidate candidate{.name = "op 2"};
  run.config.activation_checkpoint = candidate.config();
  return {.line = fmt::format("\"{}\": {}", candidate.name, reason)};
}

// The environment's forecast for `config`, with the run's teacher, and the copies of another machine's checkpoints.
StepForecast forecast_of(
    const Run& run, const RunEnvironment& environment, const TrainConfig& config, const Granted& granted) {
  StepForecast step = environment.forecast(config, run.spec, *run.args, run.ranks.world_size());
  step.copied = step.copied / config.checkpoint.copies() * config.checkpoint.copies(granted.on_several_machines);
  if (run.teacher) {
    step.peak += teacher_bytes(config, *run.teacher->args, run.ranks.context());
  }
  return step;
}

// The main rank's part: forecasts and chooses.
RunRecompute choose(Run& run, const RunEnvironment& environment, const Granted& granted) {
  try {
    const RecomputeChoice choice =
        choose_recompute(run.config, static_cast<int64_t>(granted.bytes), [&](const TrainConfig& config) {
          return forecast_of(run, environment, config, granted);
        });
    run.config.activation_checkpoint = choice.best().config();
    return {.line = choice.describe(), .forecast = choice.best().step};
  } catch (const std::exception& problem) {
    return usual(run, fmt::format("the memory of a step cannot be predicted: {}", mesh::exception_text(problem)));
  }
}

// A mode that the config fixes. There is no forecast of a small model, which would take a few milliseconds per layer,
// if a generous estimate is far below the memory that is granted.
RunRecompute keep(const Run& run, const RunEnvironment& environment, const Granted& granted) {
  constexpr int64_t kPerParameter = 32, kPerToken = 256 << 10, kFar = 4;
  const int64_t parameters = run.args->get_nparams_and_flops(1).num_parameters;
  const int64_t tokens = run.config.training.local_batch_size * run.config.training.seq_len;
  if (parameters < kLargeModel &&
      static_cast<double>(kFar * (kPerParameter * parameters + kPerToken * tokens)) < granted.bytes) {
    return {};
  }
  try {
    return {.forecast = forecast_of(run, environment, run.config, granted)};
  } catch (const std::exception&) {
    return {};  // a family that does not run on meta can still be trained
  }
}

// Before memory is allocated: afterwards the system may have ended this process without a word.
void warn_of_memory(const Run& run, const std::optional<StepForecast>& step, double granted, bool chosen) {
  if (!step || static_cast<double>(step->with_copy()) <= granted) {
    return;
  }
  run.logger.warn(
      "memory: the run needs {}{}, more than the {} granted, and the system may kill it (OOM killer); {}lower "
      "training.local_batch_size or training.seq_len, take a smaller model, or shard it over more machines",
      human_bytes(static_cast<double>(step->with_copy())),
      run.ranks.world_size() > 1 ? " on a rank" : "",
      human_bytes(granted),
      chosen ? "" : "set activation_checkpoint.mode = \"auto\", ");
}
}  // namespace

RunRecompute choose_for_run(Run& run, const RunEnvironment& environment) {
  const bool chooses = run.config.activation_checkpoint.mode == "auto";
  if (const std::string reason = why_none(run, environment); !reason.empty()) {
    return chooses ? usual(run, reason) : RunRecompute{};
  }
  const Granted granted = least_of_ranks(run.ranks, granted_here(environment));
  if (granted.bytes < 0) {
    return chooses ? usual(run, "the memory that the system grants is not known") : RunRecompute{};
  }
  RunRecompute made;
  int64_t index = 0;
  const auto& names = recompute_candidates();
  if (run.ranks.is_main()) {
    made = chooses ? choose(run, environment, granted) : keep(run, environment, granted);
    warn_of_memory(run, made.forecast, granted.bytes, chooses);
    const auto& taken = run.config.activation_checkpoint;
    const std::string name = taken.mode == "selective" ? taken.selective_ac_option : taken.mode;
    index = std::find(names.begin(), names.end(), name) - names.begin();
  }
  if (!chooses) {
    return made;
  }
  run.config.activation_checkpoint =
      RecomputeCandidate{.name = names.at(static_cast<size_t>(run.ranks.of_main(index))), .step = {}}.config();
  return made;
}

}  // namespace lehr::train
