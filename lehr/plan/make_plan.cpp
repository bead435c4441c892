#include "lehr/plan/make_plan.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/mesh/fake_transport.h"
#include "lehr/pipeline/balance.h"
#include "lehr/pipeline/schedules.h"
#include "lehr/plan/forecast.h"
#include "lehr/plan/links.h"
#include "lehr/plan/step_time.h"
#include "lehr/train/mesh_rules.h"
#include "lehr/train/model_counts.h"
#include "lehr/train/precision.h"

namespace lehr::plan {

namespace {
// Returns the name of the run's schedule: its CSV file, a published schedule, or "none".
std::string schedule_name(const ResolvedRun& run) {
  const auto& p = run.config.parallelism;
  if (p.pipeline_parallel_degree == 1) {
    return "none";
  }
  return p.pipeline_parallel_schedule_csv
             ? *p.pipeline_parallel_schedule_csv
             : std::string(pipeline::schedule_info(pipeline::parse_schedule(p.pipeline_parallel_schedule)).name);
}

void warn_of_slower_than_1f1b(Plan& plan) {
  const auto find = [&](auto condition) {
    return std::find_if(plan.schedules.begin(), plan.schedules.end(), condition);
  };
  const auto plain = find([](const SchedulePrediction& one) { return one.name == "1F1B"; });
  if (plain != plan.schedules.end() && plan.step_seconds > 1.002 * plain->step_seconds) {
    plan.warnings.push_back(fmt::format(
        "parallelism.pipeline_parallel_schedule: {} is predicted {:.1f} % slower than 1F1B on this mesh",
        plan.schedule,
        100 * (plan.step_seconds / plain->step_seconds - 1)));
  }
  const SchedulePrediction& best = plan.schedules.front();
  if (best.fits && best.step_seconds < 0.98 * plan.step_seconds) {
    plan.warnings.push_back(fmt::format(
        "parallelism.pipeline_parallel_schedule: {}{} is predicted {:.1f} % faster than {}, and fits",
        best.name,
        best.stages_per_rank > 1 ? fmt::format(" with {} stages per rank", best.stages_per_rank) : "",
        100 * (1 - best.step_seconds / plan.step_seconds),
        plan.schedule));
  }
}

// Adds a warning if balancing layers by cost would be faster.
void suggest_balance(
    Plan& plan, const train::TrainSpec& spec, const pipeline::Program& program, const CostContext& context) {
  train::TrainConfig config = plan.run.config;
  auto& parallelism = config.parallelism;
  if (parallelism.pipeline_parallel_balance == train::PipelineBalance::cost) {
    return;
  }
  parallelism.pipeline_parallel_balance = train::PipelineBalance::cost;
  parallelism.pipeline_parallel_first_stage_less_layers = 0;
  parallelism.pipeline_parallel_last_stage_less_layers = 0;
  const auto num_stages = static_cast<int64_t>(program.rank_of_stage.size());
  if (plan.run.args->get_nparams_and_flops(1).layer_flops_per_token.empty()) {
    return;  // the family does not count FLOPs per layer
  }
  const auto layers = train::chosen_layers(config, *plan.run.args, num_stages);
  if (layers == plan.layers_by_stage()) {
    return;
  }
  StageCosts costs(config, spec, *plan.run.args, context);
  const StepPrediction step = predict_step(program, costs.of(program.rank_of_stage), context);
  const bool fits = std::all_of(step.memory.begin(), step.memory.end(), [&](const RankMemory& rank) {
    return rank.peak.total() <= plan.machine.usable_bytes();
  });
  if (fits && step.timeline.makespan < 0.98 * plan.step_seconds) {
    plan.warnings.push_back(fmt::format(
        "parallelism.pipeline_parallel_balance: \"cost\" (layers by stage: {}) is predicted {:.1f} % faster, and fits",
        pipeline::describe_layers(layers),
        100 * (1 - step.timeline.makespan / plan.step_seconds)));
  }
}

// A run chooses by its machine's memory; its plan by that of the plan's machine.
void choose_recompute(Plan& plan, const train::TrainSpec& spec) {
  train::TrainConfig& config = plan.run.config;
  if (config.activation_checkpoint.mode != "auto") {
    return;
  }
  const auto usable = static_cast<int64_t>(plan.machine.usable_bytes());
  const auto choice = train::choose_recompute(config, usable, [&](const train::TrainConfig& with) {
    train::StepForecast step = forecast_step(with, spec, *plan.run.args, plan.run.mesh.world_size());
    step.copied = 0;  // a plan's memory has no copy of a save, which a GPU does not hold either
    return step;
  });
  config.activation_checkpoint = choice.best().config();
  plan.recompute = choice.describe();
}

void predict_goodput(Plan& plan) {
  if (!plan.machine.device_mtbf_hours) {
    return;
  }
  const auto& checkpoint = plan.run.config.checkpoint;
  std::vector<double> bytes(plan.memory.size());
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const StageMeasurement& s = plan.stages[stage].measured;
    bytes[static_cast<size_t>(plan.rank_of_stage[stage])] +=
        static_cast<double>(s.saved_bytes(plan.run.config.peft.has_adapters()));
  }
  GoodputPrediction found{.checkpoint_bytes = *std::max_element(bytes.begin(), bytes.end())};
  found.failures = failure_model(
      plan.machine, plan.run.mesh.world_size(), found.checkpoint_bytes, checkpoint.async_mode != "disabled");
  found.best_interval = found.failures.best_interval();
  found.best_goodput = found.failures.goodput(found.best_interval);
  found.interval = static_cast<double>(checkpoint.interval) * plan.step_seconds;
  found.goodput = found.interval >= found.failures.writing ? found.failures.goodput(found.interval) : 0;
  plan.goodput = found;
}

void warn_of_mesh(Plan& plan) {
  const GroupPlacement group = place_group(mesh::axis::tp, plan.run.mesh, plan.machine.ranks_per_node);
  if (group.nodes > 1) {
    plan.warnings.push_back(fmt::format(
        "parallelism.tensor_parallel_degree: {} ranks span {} nodes of {}; tp collectives are exposed, over the slow "
        "links between nodes",
        group.size,
        group.nodes,
        plan.machine.ranks_per_node));
  }
}
}  // namespace

std::vector<SchedulePrediction> compare_schedules(
    const ResolvedRun& run, StageCosts& costs, const CostContext& context, const PlanProgress& progress) {
  std::vector<SchedulePrediction> found;
  int64_t done = 0;
  const auto& all = pipeline::all_schedules();
  for (const pipeline::ScheduleInfo& info : all) {
    if (progress) {
      progress("schedules", done++, static_cast<int64_t>(all.size()));
    }
    if (!info.has_backward) {
      continue;
    }
    std::vector<int64_t> per_rank{info.default_stages_per_rank};
    if (info.max_stages_per_rank == 0) {
      per_rank.push_back(2 * info.default_stages_per_rank);
    }
    for (const int64_t stages : per_rank) {
      const pipeline::ScheduleOptions options{
          .schedule = info.schedule,
          .num_ranks = run.mesh.pipeline_parallel,
          .num_stages_per_rank = stages,
          .num_microbatches = run.microbatches};
      try {
        const auto program = pipeline::build_program(options);
        const StepPrediction step = predict_step(program, costs.of(program.rank_of_stage), context);
        SchedulePrediction one{
            .name = std::string(info.name),
            .stages_per_rank = stages,
            .step_seconds = step.timeline.makespan,
            .bubble_share = step.timeline.bubble_share()};
        for (const RankMemory& rank : step.memory) {
          one.peak_bytes = std::max(one.peak_bytes, rank.peak.total());
        }
        one.fits = one.peak_bytes <= context.machine.usable_bytes();
        found.push_back(one);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) {
          throw;
        }  // not defined for these numbers, or more stages than layers
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(!a.fits, a.step_seconds) < std::pair(!b.fits, b.step_seconds);
  });
  return found;
}

CostContext cost_context(const Plan& plan) {
  return {
      .machine = plan.machine,
      .mesh = plan.run.mesh,
      .compute = train::compute_type(plan.run.config.training),
      .float8 = plan.run.config.float8.enable,
      .peer = plan.peer,
      .microbatches = plan.run.microbatches,
      .keeps_gathered = keeps_gathered(plan.run.config)};
}

Plan make_plan(
    const train::TrainConfig& config,
    const train::TrainSpec& spec,
    const Machine& machine,
    const PlanOptions& options) {
  Plan plan{.run = resolve(config, spec, options.devices), .machine = machine, .peer = options.peer};
  choose_recompute(plan, spec);
  const train::TrainingConfig& training = plan.run.config.training;
  const CostContext context = cost_context(plan);
  StageCosts costs(plan.run.config, spec, *plan.run.args, context);
  const auto program = program_of(plan.run);
  const auto stages = costs.of(program.rank_of_stage);
  StepPrediction step = predict_step(program, stages, context);
  plan.schedule = schedule_name(plan.run);
  plan.rank_of_stage = program.rank_of_stage;
  for (const PlannedStage* stage : stages) {
    plan.stages.push_back(*stage);
  }
  plan.counts = train::count_model(plan.run.config, *plan.run.args, spec.build);
  plan.step_seconds = step.timeline.makespan;
  plan.bubble_share = step.timeline.bubble_share();
  const double tokens = static_cast<double>(training.rows_per_step()) * static_cast<double>(training.seq_len);
  plan.tokens_per_second = tokens / plan.step_seconds;
  const double peak = machine.peak_flops(context.compute) * static_cast<double>(plan.run.mesh.world_size());
  plan.mfu = static_cast<double>(plan.counts.causal_flops_per_token) * plan.tokens_per_second / peak;
  plan.mfu_full = static_cast<double>(plan.counts.flops_per_token) * plan.tokens_per_second / peak;
  account_for_time(plan, step, stages);
  plan.timeline = std::move(step.timeline);
  plan.memory = std::move(step.memory);
  plan.timeline.memory.clear();  // the simulation knows no bytes
  for (const RankMemory& rank : plan.memory) {
    auto& points = plan.timeline.memory.emplace_back();
    for (const MemoryMoment& moment : rank.moments) {
      points.push_back({moment.seconds, moment.held.total()});
    }
  }
  for (size_t rank = 0; rank < plan.memory.size(); ++rank) {
    if (plan.memory[rank].peak.total() > plan.memory[plan.fullest_rank].peak.total()) {
      plan.fullest_rank = rank;
    }
  }
  if (options.compare_schedules && plan.run.mesh.pipeline_parallel > 1) {
    plan.schedules = compare_schedules(plan.run, costs, context, options.progress);
    const auto per_rank = static_cast<int64_t>(plan.rank_of_stage.size()) / plan.run.mesh.pipeline_parallel;
    for (SchedulePrediction& one : plan.schedules) {
      one.configured = one.name == plan.schedule && one.stages_per_rank == per_rank;
    }
    warn_of_slower_than_1f1b(plan);
    suggest_balance(plan, spec, program, context);
  }
  predict_goodput(plan);
  warn_of_mesh(plan);
  return plan;
}

}  // namespace lehr::plan
