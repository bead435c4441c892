#include "lehr/plan/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lehr/base/log.h"
#include "lehr/pipeline/balance.h"
#include "lehr/plan/links.h"
#include "lehr/train/precision.h"

namespace lehr::plan {

namespace {
std::string gigabytes(double bytes) {
  return fmt::format("{:.2f}", bytes / 1e9);
}

std::string seconds(double value) {
  if (value >= 100) {
    return fmt::format("{:.0f} s", value);
  }
  return value >= 1 ? fmt::format("{:.2f} s", value) : fmt::format("{:.2f} ms", 1e3 * value);
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::string grouped(int64_t value) {
  const std::string digits = std::to_string(std::abs(value));
  std::string text = value < 0 ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      text += ',';
    }
    text += digits[i];
  }
  return text;
}

const char* name_of_dtype(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bfloat16" : dtype == at::kDouble ? "float64" : "float32";
}

std::string head(const Plan& plan) {
  const auto& config = plan.run.config;
  const auto& training = config.training;
  const Machine& m = plan.machine;
  const at::ScalarType compute = train::compute_type(training);
  const int64_t world = plan.run.mesh.world_size();
  std::string text = config.job.description + "\n\n";
  text += fmt::format(
      "model      {}{}: {} parameters, {} stages; {}FLOPs per token ({} with full instead of causal attention)\n",
      plan.run.args->model_type(),
      config.model.flavor.empty() ? "" : " " + config.model.flavor,
      human_count(static_cast<double>(plan.counts.num_parameters)),
      plan.stages.size(),
      human_count(static_cast<double>(plan.counts.causal_flops_per_token)),
      human_count(static_cast<double>(plan.counts.flops_per_token)));
  text += fmt::format(
      "machine    {} x {}: {:.4g} TFLOP/s in {}, {:.4g} GB at {:.4g} GB/s; {} per node at {:.4g} GB/s, nodes at "
      "{:.4g} GB/s per device\n",
      grouped(world),
      m.name,
      m.peak_flops(compute) / 1e12,
      name_of_dtype(compute),
      m.memory_gb,
      m.memory_gb_per_second,
      m.ranks_per_node,
      m.node_gb_per_second,
      m.network_gb_per_second);
  text += fmt::format("mesh       {}\n", plan.run.mesh.describe());
  if (!(plan.peer == PeerDesign{})) {
    text += "peer       times are those of another system's design (--peer), which Lehr does not run\n";
  }
  if (!plan.recompute.empty()) {
    text += fmt::format("recompute  {}\n", plan.recompute);
  }
  text += fmt::format(
      "batch      {} sequences of {} tokens per step ({} tokens): {} micro-batches of {} sequences on each rank\n",
      grouped(training.rows_per_step()),
      grouped(training.seq_len),
      grouped(training.rows_per_step() * training.seq_len),
      plan.run.microbatches,
      plan.run.rows);
  if (plan.run.mesh.pipeline_parallel > 1) {
    text += fmt::format(
        "schedule   {}, {} stages per rank\n",
        plan.schedule,
        static_cast<int64_t>(plan.rank_of_stage.size()) / plan.run.mesh.pipeline_parallel);
    if (config.parallelism.pipeline_parallel_balance == train::PipelineBalance::cost) {
      text +=
          fmt::format("layers     {} by stage, balanced by cost\n", pipeline::describe_layers(plan.layers_by_stage()));
    }
  }
  return text;
}

std::string goodput_line(const Plan& plan) {
  if (!plan.goodput) {
    return "";
  }
  const GoodputPrediction& g = *plan.goodput;
  const auto steps = std::max(1.0, std::round(g.best_interval / plan.step_seconds));
  std::string text = fmt::format(
      "goodput    {} with a checkpoint every {} steps ({}); a failure every {:.1f} h, a save stops the run for {} and "
      "is durable after {}; ",
      percent(g.best_goodput),
      grouped(static_cast<int64_t>(steps)),
      seconds(g.best_interval),
      g.failures.mtbf / 3600,
      seconds(g.failures.blocked),
      seconds(g.failures.blocked + g.failures.writing));
  const int64_t interval = plan.run.config.checkpoint.interval;
  return text + (g.goodput > 0 ? fmt::format("{} with the config's {} steps\n", percent(g.goodput), grouped(interval))
                               : fmt::format("the config's {} steps are too few for a save\n", grouped(interval)));
}

std::string verdict(const Plan& plan) {
  const double world = static_cast<double>(plan.run.mesh.world_size());
  const double usable = plan.machine.usable_bytes();
  const double peak = plan.peak_bytes();
  std::string text = fmt::format(
      "\nstep       {}, {} tokens/s, {} per device\n",
      seconds(plan.step_seconds),
      human_count(plan.tokens_per_second),
      human_count(plan.tokens_per_second / world));
  text += fmt::format(
      "MFU        {} of the peak, {} with full instead of causal attention\n",
      percent(plan.mfu),
      percent(plan.mfu_full));
  if (plan.run.mesh.pipeline_parallel > 1) {
    text += fmt::format("bubble     {} of all ranks' time\n", percent(plan.bubble_share));
  }
  const std::string where =
      plan.memory.size() > 1 ? fmt::format(" on pipeline rank {}, the highest peak", plan.fullest_rank) : "";
  text += plan.fits() ? fmt::format(
                            "memory     fits: {} of {} GB{}, {} GB free\n",
                            gigabytes(peak),
                            gigabytes(usable),
                            where,
                            gigabytes(usable - peak))
                      : fmt::format(
                            "memory     DOES NOT FIT: {} of {} GB{}, {} GB over\n",
                            gigabytes(peak),
                            gigabytes(usable),
                            where,
                            gigabytes(peak - usable));
  return text + fmt::format("bottleneck {}\n", plan.bottleneck) + goodput_line(plan);
}

std::string time_section(const Plan& plan) {
  std::vector<std::vector<std::string>> rows;
  for (const TimeShare& share : plan.time) {
    rows.push_back({share.name, seconds(share.seconds), percent(share.seconds / plan.step_seconds)});
  }
  return "\nBreakdown of the step time" + std::string(plan.memory.size() > 1 ? ", on the busiest rank" : "") + "\n" +
         text_table({"", "time", "share"}, rows);
}

std::string memory_section(const Plan& plan) {
  std::vector<std::string> titles{plan.memory.size() > 1 ? "pipeline rank" : "", "layers"};
  for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
    titles.emplace_back(name_of(static_cast<MemoryKind>(kind)));
  }
  titles.emplace_back("sum");
  std::vector<std::vector<std::string>> rows;
  for (size_t rank = 0; rank < plan.memory.size(); ++rank) {
    int64_t layers = 0;
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      layers += plan.rank_of_stage[stage] == static_cast<int64_t>(rank) ? plan.stages[stage].measured.num_layers : 0;
    }
    std::vector<std::string> row{plan.memory.size() > 1 ? std::to_string(rank) : "every rank", std::to_string(layers)};
    for (const double bytes : plan.memory[rank].peak.bytes) {
      row.push_back(gigabytes(bytes));
    }
    row.push_back(gigabytes(plan.memory[rank].peak.total()));
    rows.push_back(std::move(row));
  }
  return "\nPeak memory of a device, GB\n" + text_table(titles, rows);
}

std::string communication_section(const Plan& plan) {
  if (plan.communication.empty()) {
    return "";
  }
  std::vector<std::vector<std::string>> rows;
  for (const CommunicationCost& one : plan.communication) {
    const GroupPlacement group = place_group(one.axes, plan.run.mesh, plan.machine.ranks_per_node);
    rows.push_back(
        {fmt::format("{} {}", one.axes, one.collective),
         grouped(group.size),
         grouped(group.nodes),
         grouped(static_cast<int64_t>(one.calls)),
         gigabytes(one.bytes),
         seconds(one.seconds),
         seconds(one.exposed)});
  }
  return "\nCommunication of that rank per step\n" +
         text_table({"", "ranks", "nodes", "calls", "input GB", "link time", "exposed"}, rows);
}

std::string schedules_section(const Plan& plan) {
  if (plan.schedules.empty()) {
    return "";
  }
  std::vector<std::vector<std::string>> rows;
  for (const SchedulePrediction& one : plan.schedules) {
    rows.push_back(
        {one.name + (one.configured ? " (configured)" : ""),
         std::to_string(one.stages_per_rank),
         seconds(one.step_seconds),
         percent(one.bubble_share),
         gigabytes(one.peak_bytes),
         one.fits ? "yes" : "no"});
  }
  return "\nSchedules on this mesh, best first\n" +
         text_table({"", "stages per rank", "step", "bubble", "GB", "fits"}, rows);
}
}  // namespace

std::string text_table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (size_t column = 0; column < titles.size(); ++column) {
    size_t width = titles[column].size();
    for (const auto& row : rows) {
      width = std::max(width, row[column].size());
    }
    widths.push_back(width);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t column = 0; column < cells.size(); ++column) {
      text += column == 0 ? fmt::format("  {:<{}}", cells[column], widths[column])
                          : fmt::format("  {:>{}}", cells[column], widths[column]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = line(titles);
  for (const auto& row : rows) {
    text += line(row);
  }
  return text;
}

std::string report_text(const Plan& plan) {
  std::string text = head(plan) + verdict(plan);
  for (const std::string& warning : plan.warnings) {
    text += "warning    " + warning + "\n";
  }
  return text + time_section(plan) + memory_section(plan) + communication_section(plan) + schedules_section(plan);
}

}  // namespace lehr::plan
