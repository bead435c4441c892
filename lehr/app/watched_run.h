// A run that is watched through the files in its folder, while it may be running in another process.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lehr/metric/downsampled_series.h"
#include "lehr/metric/metrics_reader.h"

namespace lehr::app {

/// Progress and metrics of a run, from its metrics.jsonl, its config.toml and its lock, which are only read. Memory
/// does not grow with the number of steps.
class WatchedRun {
 public:
  enum class State {
    absent,    ///< There is no metrics.jsonl.
    no_steps,  ///< It has no step yet.
    running,   ///< A process holds the lock of the run.
    complete,  ///< The last step of training.steps is logged, and no process holds the lock.
    stopped,   ///< No process holds the lock, and steps are missing.
    unknown,   ///< There is no lock to see, as on a file system that does not share locks.
  };

  /// The metrics of a step; those of its validation are added to them.
  struct Row {
    metric::MetricsLine metrics = {};
    double step_seconds = 0;  ///< Mean of the last 20 steps; 0: unknown.
  };

  /// `folder` is that of the run, `name` its name in messages. Keeps the series of `keys` and of their validations, and
  /// the last `rows` rows.
  WatchedRun(std::filesystem::path folder, std::string name, std::vector<std::string> keys, size_t rows);

  /// Reads the state and the new lines. Returns whether anything has changed. Throws a usage error if metrics.jsonl
  /// cannot be read.
  bool update();

  const std::filesystem::path& folder() const { return folder_; }
  const std::string& name() const { return name_; }
  State state() const { return state_; }
  /// True if the run is complete, or was seen running and has stopped.
  bool ended() const { return state_ == State::complete || (state_ == State::stopped && was_running_); }
  /// The number of steps of the whole run, from its config.
  std::optional<int64_t> steps() const { return steps_; }
  /// The steps that follow this row, at the mean time of those before it; nullopt if that is unknown.
  std::optional<double> seconds_left(const Row& row) const;

  /// The last rows.
  const std::deque<Row>& rows() const { return rows_; }
  /// The lines that the last update has read, without those that a resumed run had logged before; none after the first
  /// update.
  const std::vector<Row>& new_rows() const { return new_rows_; }
  /// The series of the keys that were given and of their validations, by key.
  const std::map<std::string, metric::DownsampledSeries>& series() const { return series_; }
  /// All metrics that were logged.
  const std::set<std::string>& known_keys() const { return known_keys_; }
  /// Number of lines of metrics.jsonl that hold no metrics.
  int64_t unreadable() const { return reader_.unreadable(); }

 private:
  void take(const metric::MetricsLine& line);
  void restart();
  void read_steps();
  State state_of(bool has_file, std::optional<bool> locked) const;

  std::filesystem::path folder_;
  std::string name_;
  size_t max_rows_;
  metric::MetricsReader reader_;

  State state_ = State::absent;
  bool was_running_ = false;
  std::optional<bool> locked_ = {};  // at the last update
  bool grows_unlocked_ = false;      // lines appear while the lock looks free
  int64_t lines_ = 0;                // read so far
  bool first_update_ = true;
  std::optional<int64_t> steps_ = {};
  std::optional<std::filesystem::file_time_type> config_time_ = {};

  std::deque<Row> rows_ = {};
  std::vector<Row> new_rows_ = {};
  int64_t repeated_up_to_ = -1;  // lines of a resumed run up to this step are not new
  std::deque<double> step_seconds_ = {};
  std::map<std::string, metric::DownsampledSeries> series_ = {};
  std::set<std::string> known_keys_ = {};
};

/// The prefix of a metric of held-out data: validation_loss is that of loss.
inline constexpr const char* kValidation = "validation_";

}  // namespace lehr::app
