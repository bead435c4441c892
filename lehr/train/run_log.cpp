#include "lehr/train/run_log.h"

#include <algorithm>
#include <utility>

#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/draw/plot.h"
#include "lehr/metric/prometheus.h"
#include "lehr/train/loss_spikes.h"
#include "lehr/train/precision.h"

namespace lehr::train {

std::map<std::string, double> learned_metrics(const RunState& state, const StepResult& result, double learning_rate) {
  auto metrics = result.metrics;
  metrics["loss"] = result.loss;
  metrics["grad_norm"] = result.grad_norm;
  metrics["lr"] = learning_rate;
  metrics["num_tokens"] = static_cast<double>(state.num_tokens);
  return metrics;
}

std::map<std::string, double> learned_metrics(const ValidationResult& result) {
  std::map<std::string, double> metrics{{"validation_loss", result.loss}};
  for (const auto& [name, value] : result.metrics) {
    metrics["validation_" + name] = value;
  }
  return metrics;
}

RunLog::RunLog(
    const TrainConfig& config,
    const descriptor::ModelArgs& args,
    const descriptor::ModelCounts& counts,
    const nn::Model& model,
    const peft::TrainableCounts& trains,
    const optim::Optimizer& optimizer,
    at::Device device,
    const Ranks& ranks,
    const RunState& state,
    Logger& log,
    double peak_flops,
    const std::optional<ExpectedMemory>& expected,
    const WorkBesideSteps& beside)
    : config_(config),
      device_(device),
      log_(log),
      folder_(config.job.dump_folder),
      counts_(counts),
      peak_flops_(counts.flops_per_token > 0 ? peak_flops : 0),
      first_step_(state.step),
      metrics_(folder_ / "metrics.jsonl", state.step == 0 ? -1 : state.step),
      time_left_(config, beside),
      profiler_(config.profiling, folder_, device),
      trains_(trains) {
  if (config.profiling.operator_table) {
    step_profile_.emplace(config, device, ranks.world_size(), state.step);
    if (step_profile_->last_step() > config.training.steps) {
      log.warn(
          "profiling.operator_table: there will be no table: it needs steps up to {}, but the run ends with {}",
          step_profile_->last_step(),
          config.training.steps);
      step_profile_.reset();
    } else if (config.profiling.enable_profiling) {
      log.warn("profiling.operator_table: its times include the overhead of profiling.enable_profiling's traces");
    }
  }
  if (args.has_experts()) {
    expert_loads_.emplace(folder_, state.step, config.metrics.log_freq);
  }
  if (config.metrics.enable_tensorboard) {
    tensorboard_ = std::make_unique<metric::TensorBoardWriter>(
        folder_ / config.metrics.save_tb_folder, state.step + 1);  // steps of an earlier start are repeated
  }
  report_start(args, model, optimizer, device, ranks, state, expected);
}

RunLog::~RunLog() = default;

void RunLog::step_begins(int64_t step) {
  if (step == first_step_ + 1) {
    goodput_.started(metric::ThroughputMeter::steady_seconds() - began_);
    meter_.restart();  // the start of the run is not part of its first step
  }
  profiler_.step_begins(step);
  if (!step_profile_) {
    return;
  }
  const bool measures_machine = step_profile_->measures_machine_before(step);
  if (measures_machine) {
    meter_.pause();
  }
  step_profile_->step_begins(step);
  if (measures_machine) {
    meter_.resume();
  }
}

void RunLog::show_table() {
  const auto table = step_profile_ ? step_profile_->take_table() : std::nullopt;
  if (!table) {
    return;
  }
  log_.end_live();
  log_.plain("");
  log_.plain(*table);
}

// Warns once per file: the run continues, and so would the warnings.
void RunLog::warn_of_full_disk() {
  for (const std::string& problem :
       {metrics_.problem(),
        tensorboard_ ? tensorboard_->problem() : std::string(),
        profiler_.problem(),
        expert_loads_ ? expert_loads_->problem() : std::string(),
        step_profile_ ? step_profile_->problem() : std::string()}) {
    if (!problem.empty() && warned_.insert(problem.substr(0, problem.find(':'))).second) {
      log_.warn("{}", problem);
    }
  }
}

void RunLog::pause(Pause reason) {
  meter_.pause();
  time_left_.begin(reason);
}

void RunLog::resume() {
  if (const auto pause = time_left_.end()) {
    goodput_.paused(pause->first, pause->second);
  }
  meter_.resume();
}

// Counts attention by the pairs of query and key that causal attention computes; the usual formula, with all pairs of a
// sequence, would overestimate the utilization by up to a third, and far more for packed documents.
double RunLog::flops_of(const StepWork& work) const {
  const auto per_pair = static_cast<double>(counts_.attention_flops_per_pair);
  const double without_attention = static_cast<double>(counts_.causal_flops_per_token) -
                                   per_pair * static_cast<double>(config_.training.seq_len) / 2;
  return without_attention * static_cast<double>(work.tokens) + per_pair * static_cast<double>(work.attention_pairs);
}

namespace {
void warn_of_step(Logger& log, const ReliabilityConfig& config, int64_t step, const StepResult& result) {
  if (result.spike) {
    log.warn(
        "{}; {}",
        LossSpikes(config).describe(step, result.loss, *result.spike),
        result.updated ? "the update was applied" : "the update was skipped");
  } else if (!result.updated && result.work.valid == 0) {
    log.warn("step {}: no token of its data has a label, so there is nothing to learn; the update was skipped", step);
  } else if (!result.updated) {
    log.warn("step {}: loss or gradient is not finite; the update was skipped", step);
  }
}
}  // namespace

std::map<std::string, double> RunLog::step_ended(
    const RunState& state, const StepResult& result, double learning_rate) {
  if (step_profile_) {
    step_profile_->step_ended(state.step);
  }
  profiler_.step_ended(state.step);
  meter_.step(result.work.tokens, flops_of(result.work));
  const double rate = meter_.tokens_per_second();
  const double utilization = metric::model_flops_utilization(meter_.flops_per_second(), peak_flops_);
  peak_of_ranks(metric::peak_memory(device_));
  auto metrics = learned_metrics(state, result, learning_rate);
  metrics["step_labels"] = static_cast<double>(result.work.valid);
  metrics["tokens_per_second"] = rate;
  metrics["step_seconds"] = meter_.last_step_seconds();
  goodput_.step(meter_.last_step_seconds());
  resident_of_ranks_ = result.resident_bytes > 0 ? result.resident_bytes : resident_of_ranks_;
  const double resident =
      resident_of_ranks_ > 0 ? resident_of_ranks_ : static_cast<double>(metric::process_memory().resident);
  metrics["memory_bytes"] = resident;
  metrics["memory_peak_bytes"] = static_cast<double>(peak_memory_.resident);
  if (!device_.is_cpu()) {
    metrics["device_peak_bytes"] = static_cast<double>(peak_memory_.device_allocated);
    metrics["device_reserved_bytes"] = static_cast<double>(peak_memory_.device_reserved);
  }
  if (peak_flops_ > 0) {
    metrics["mfu"] = utilization;
  }
  if (state.skipped > 0) {
    metrics["skipped"] = static_cast<double>(state.skipped);
  }

  std::vector<std::pair<std::string, metric::MetricValue>> line;
  for (const char* first : {"loss", "grad_norm", "lr"}) {
    line.emplace_back(first, metrics.at(first));
  }
  line.emplace_back("num_tokens", state.num_tokens);
  for (const auto& [name, value] : metrics) {
    if (name != "loss" && name != "grad_norm" && name != "lr" && name != "num_tokens") {
      line.emplace_back(name, value);
    }
  }
  metrics_.write(state.step, line);
  if (tensorboard_) {
    tensorboard_->scalars(state.step, {metrics.begin(), metrics.end()});
  }

  warn_of_full_disk();
  if (expert_loads_ && result.tokens_per_expert.defined()) {
    expert_loads_->add(state.step, result.tokens_per_expert);
  }
  const int64_t left = config_.training.steps - state.step;
  std::string text = fmt::format(
      "step {:>{}}/{}  loss {:7.4f}  grad {:6.3f}  lr {:.2e}  {} tok/s",
      state.step,
      std::to_string(config_.training.steps).size(),
      config_.training.steps,
      result.loss,
      result.grad_norm,
      learning_rate,
      human_count(rate));
  for (const auto& [name, value] : result.metrics) {
    text += fmt::format("  {} {:.3f}", name, value);
  }
  if (peak_flops_ > 0) {
    text += fmt::format("  {:4.1f} % of peak", 100 * utilization);
  }
  text += fmt::format(
      "  {}  {} left",
      human_bytes(static_cast<double>(device_.is_cpu() ? peak_memory_.resident : peak_memory_.device_allocated)),
      human_seconds(seconds_left(state.step)));
  const bool shown = state.step % config_.metrics.log_freq == 0 || state.step == first_step_ + 1 || left == 0;
  warn_of_step(log_, config_.reliability, state.step, result);
  if (shown) {
    write_prometheus(state.step, metrics);
    log_.info("{}", text);
  }
  log_.live(text);
  show_table();
  return metrics;
}

// A file that cannot be written is no reason to stop.
void RunLog::write_prometheus(int64_t step, const std::map<std::string, double>& metrics) {
  if (!config_.metrics.prometheus) {
    return;
  }
  auto gauges = metrics;
  gauges["seconds_left"] = seconds_left(step);
  try {
    write_file_atomically(*config_.metrics.prometheus, metric::prometheus_text(config_.job.description, step, gauges));
  } catch (const std::exception& error) {
    if (warned_.insert("metrics.prometheus").second) {
      log_.warn("metrics.prometheus: {}", error.what());
    }
  }
}

bool RunLog::has_validation(int64_t step) const {
  const auto logged = metric::read_metric(folder_ / "metrics.jsonl", "validation_loss").steps;
  return std::find(logged.begin(), logged.end(), static_cast<double>(step)) != logged.end();
}

std::map<std::string, double> RunLog::validated(int64_t step, const ValidationResult& result) {
  auto metrics = learned_metrics(result);
  std::vector<std::pair<std::string, metric::MetricValue>> line;
  std::string text;
  for (const auto& [name, value] : metrics) {
    line.emplace_back(name, value);
    text += fmt::format("  {} {:.4f}", name, value);
  }
  metrics_.write(step, line);
  if (tensorboard_) {
    tensorboard_->scalars(step, {metrics.begin(), metrics.end()});
  }
  log_.info("step {}{}  ({} items)", step, text, human_count(static_cast<double>(result.valid)));
  return metrics;
}

void RunLog::sample(const std::string& prompt, const std::string& text) {
  log_.plain("");
  log_.plain("--- sample ---");
  log_.plain(prompt + text);
  log_.plain("---");
  write_file_atomically(folder_ / "sample.txt", prompt + text + "\n");
  if (tensorboard_) {
    tensorboard_->text(config_.training.steps, "sample", prompt + text);
  }
}

void RunLog::finish() {
  log_.end_live();
  if (step_profile_ && !step_profile_->is_done()) {
    log_.warn("profiling.operator_table: the run ended before the table's steps were complete; there is no table");
  }
  const double seconds = metric::ThroughputMeter::steady_seconds() - began_;
  if (first_step_ < config_.training.steps) {
    log_.info("goodput    {}", goodput_.describe(seconds));
  }
  if (expert_loads_) {
    expert_loads_->draw();
  }
  std::vector<draw::PlotSeries> series;
  for (const auto& [key, name] : {std::pair{"loss", "training"}, std::pair{"validation_loss", "validation"}}) {
    metric::MetricSeries read = metric::read_metric(folder_ / "metrics.jsonl", key);
    if (!read.steps.empty()) {
      const bool training = series.empty() && std::string(key) == "loss";
      series.push_back(
          {.name = name,
           .x = std::move(read.steps),
           .y = std::move(read.values),
           .smoothing = training ? 20.0 : 0.0,
           .markers = !training});
    }
  }
  if (!series.empty()) {
    write_file_atomically(
        folder_ / "loss.svg",
        draw::line_plot_svg(series, {.title = config_.job.description, .y_label = "loss (nats)"}));
    log_.info("done in {}; loss curve in {}", human_seconds(seconds), (folder_ / "loss.svg").string());
  }
}

}  // namespace lehr::train
