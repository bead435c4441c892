// The output of a run: the start-up report, the progress line, metrics.jsonl, TensorBoard, traces, and the final plot.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "lehr/descriptor/model_args.h"
#include "lehr/metric/device_memory.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/metric/tensorboard.h"
#include "lehr/metric/throughput.h"
#include "lehr/peft/inject.h"
#include "lehr/train/config.h"
#include "lehr/train/expert_loads.h"
#include "lehr/train/goodput.h"
#include "lehr/train/profiler.h"
#include "lehr/train/ranks.h"
#include "lehr/train/run_checkpoint.h"
#include "lehr/train/step.h"
#include "lehr/train/step_profile.h"
#include "lehr/train/time_left.h"
#include "lehr/train/validate.h"

namespace lehr {
class Logger;
}

namespace lehr::train {

/// The training metrics of a step by their names in metrics.jsonl, on any rank; the log adds times and memory.
std::map<std::string, double> learned_metrics(const RunState& state, const StepResult& result, double learning_rate);
std::map<std::string, double> learned_metrics(const ValidationResult& result);

/// Peak tensor memory of a run in bytes.
struct ExpectedMemory {
  int64_t step = 0;   ///< Peak of a training step.
  int64_t saves = 0;  ///< Additional memory from the first save on, for the copy that is written; 0 without
                      ///< checkpoints.
};

/// The log of one run. References must outlive it.
class RunLog {
 public:
  /// Removes the entries that an earlier attempt logged after `state.step`, and logs the start-up report. `peak_flops`
  /// is that of all ranks, 0 if it is unknown; `expected` is set if it is known. `counts` are those of count_model.
  RunLog(
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
      const std::optional<ExpectedMemory>& expected = {},
      const WorkBesideSteps& beside = {});
  ~RunLog();

  /// Counts the goodput from this time of metric::ThroughputMeter::steady_seconds() on, at which the run began to read
  /// its data and weights; by default from the construction.
  void count_from(double began) { began_ = began; }
  /// Adds the seconds that a step waited for its batch.
  void waited_for_data(double seconds) { goodput_.waited_for_data(seconds); }

  void step_begins(int64_t step);
  /// Logs a step and returns its metrics, as in metrics.jsonl.
  std::map<std::string, double> step_ended(const RunState& state, const StepResult& result, double learning_rate);
  /// The most memory that any rank has taken; later metrics include it.
  void peak_of_ranks(const metric::PeakMemory& peak) { peak_memory_ = metric::highest(peak_memory_, peak); }
  /// Logs a validation and returns its metrics.
  std::map<std::string, double> validated(int64_t step, const ValidationResult& result);
  /// True if a validation of this step was logged, by this run or by the one that it resumes.
  bool has_validation(int64_t step) const;
  using Pause = TimeLeft::Pause;
  /// The time between pause() and resume() does not count as training time.
  void pause(Pause reason);
  void resume();
  /// The time in which a save was written in the background.
  void wrote(double seconds) { time_left_.wrote(seconds); }
  /// Returns the expected time in seconds after step `step` (TimeLeft::seconds).
  double seconds_left(int64_t step) const { return time_left_.seconds(step, meter_.step_seconds()); }
  /// Prints generated text and saves it in sample.txt.
  void sample(const std::string& prompt, const std::string& text);
  /// Draws loss.svg and removes the progress line.
  void finish();

 private:
  double flops_of(const StepWork& work) const;
  void warn_of_full_disk();
  void show_table();
  void write_prometheus(int64_t step, const std::map<std::string, double>& metrics);

  void report_start(
      const descriptor::ModelArgs& args,
      const nn::Model& model,
      const optim::Optimizer& optimizer,
      at::Device device,
      const Ranks& ranks,
      const RunState& state,
      const std::optional<ExpectedMemory>& expected);

  const TrainConfig& config_;
  at::Device device_;
  Logger& log_;
  std::filesystem::path folder_;
  descriptor::ModelCounts counts_;
  std::optional<ExpertLoads> expert_loads_;  // with experts
  double peak_flops_;                        // of all ranks together; 0 if unknown
  std::set<std::string> warned_;             // files
  double began_ = metric::ThroughputMeter::steady_seconds();
  int64_t first_step_;
  metric::MetricsLog metrics_;
  std::unique_ptr<metric::TensorBoardWriter> tensorboard_;
  metric::ThroughputMeter meter_;
  TimeLeft time_left_;
  Goodput goodput_;
  metric::PeakMemory peak_memory_;  // of all ranks, up to the last exchange
  double resident_of_ranks_ = 0;    // bytes of all processes in the last step with labels; 0 on one device
  Profiler profiler_;
  std::optional<StepProfile> step_profile_;
  peft::TrainableCounts trains_;
};

}  // namespace lehr::train
