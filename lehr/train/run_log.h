// What a run tells: the start-up report, the progress line, metrics.jsonl, TensorBoard, traces, and the picture at the
// end.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "lehr/descriptor/model_args.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/metric/tensorboard.h"
#include "lehr/metric/throughput.h"
#include "lehr/peft/inject.h"
#include "lehr/train/config.h"
#include "lehr/train/profiler.h"
#include "lehr/train/ranks.h"
#include "lehr/train/run_checkpoint.h"
#include "lehr/train/step.h"
#include "lehr/train/step_profile.h"
#include "lehr/train/validate.h"

namespace lehr {
class Logger;
}

namespace lehr::train {

/// What was learned in a step, as metrics.jsonl names it, on any rank; the log adds times and memory.
std::map<std::string, double> learned_metrics(const RunState& state, const StepResult& result, double learning_rate);
std::map<std::string, double> learned_metrics(const ValidationResult& result);

/// Bytes that all tensors of a run will take at most.
struct ExpectedMemory {
  int64_t step = 0;   ///< In a training step.
  int64_t saves = 0;  ///< More from the first save on, for the copy that is written; 0 where nothing is saved.
};

/// Floating-point operations a second that one rank's device reaches at best in that type.
using PeakFlops = std::function<double(at::Device device, at::ScalarType dtype)>;
/// metric::measure_peak_flops.
double measured_peak_flops(at::Device device, at::ScalarType dtype);

/// One run's voice. References must outlive it.
class RunLog {
 public:
  /// Cuts what an earlier attempt logged after `state.step`, and tells how the run begins. `expected`:
  /// where that is known. `peak_flops` is asked once if metrics.measure_peak says so.
  RunLog(
      const TrainConfig& config,
      const descriptor::ModelArgs& args,
      const nn::Model& model,
      const peft::TrainableCounts& trains,
      const optim::Optimizer& optimizer,
      at::Device device,
      const Ranks& ranks,
      const RunState& state,
      Logger& log,
      const std::optional<ExpectedMemory>& expected = {},
      const PeakFlops& peak_flops = measured_peak_flops);
  ~RunLog();

  void step_begins(int64_t step);
  /// Logs a step and returns its metrics, as in metrics.jsonl.
  std::map<std::string, double> step_ended(const RunState& state, const StepResult& result, double learning_rate);
  /// Logs a validation and returns its metrics.
  std::map<std::string, double> validated(int64_t step, const ValidationResult& result);
  /// Whether a validation of this step was logged, by this run or by the one that it resumes.
  bool has_validation(int64_t step) const;
  /// Time between these two does not count as training time.
  void pause() { meter_.pause(); }
  void resume() { meter_.resume(); }
  /// Shows generated text, and keeps it in sample.txt.
  void sample(const std::string& prompt, const std::string& text);
  /// Draws loss.svg and takes the progress line away.
  void finish();

 private:
  void warn_of_full_disk();
  void show_table();
  void remember_expert_loads(int64_t step, const at::Tensor& tokens_per_expert);
  void draw_expert_loads() const;

  void report_start(
      const descriptor::ModelArgs& args,
      const nn::Model& model,
      const optim::Optimizer& optimizer,
      at::Device device,
      const Ranks& ranks,
      const RunState& state,
      const std::optional<ExpectedMemory>& expected);

  const TrainConfig& config_;
  Logger& log_;
  std::filesystem::path folder_;
  descriptor::ModelCounts counts_;
  std::vector<std::vector<double>> expert_loads_;  // one row a logged step: experts of all mixtures, sorted together
  std::vector<std::string> expert_load_steps_;
  double peak_flops_ = 0;         // of all ranks together
  std::set<std::string> warned_;  // files
  double began_ = metric::ThroughputMeter::steady_seconds();
  int64_t first_step_;
  metric::MetricsLog metrics_;
  std::unique_ptr<metric::TensorBoardWriter> tensorboard_;
  metric::ThroughputMeter meter_;
  Profiler profiler_;
  std::optional<StepProfile> step_profile_;
  peft::TrainableCounts trains_;
};

}  // namespace lehr::train
