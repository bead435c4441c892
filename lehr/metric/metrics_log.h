// metrics.jsonl: one JSON object a step, appended as training goes and cut back when it resumes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lehr::metric {

/// What a metric may be. Floating-point numbers are written so that reading gives the same 64 bits; those that are not
/// finite, which JSON does not know, become null.
using MetricValue = std::variant<int64_t, double, std::string>;

/// The writer. A file of a run that was killed and resumed equals that of one never killed (where the values do).
class MetricsLog {
 public:
  /// Opens `path` for appending and makes its folder. Lines with a step above `resume_step` are cut off first, and so
  /// is a line that a kill left incomplete; the cut file replaces the old one atomically. A run that starts afresh
  /// passes -1. Throws a usage error that names the line when a line in the middle is no object with a whole `step`,
  /// and a runtime error when the file cannot be written.
  MetricsLog(std::filesystem::path path, int64_t resume_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// Appends {"step": step, ...} in the order given, by one write, so that other processes see whole lines. A line that
  /// the disk does not take is left out, see `problem`.
  void write(int64_t step, const std::vector<std::pair<std::string, MetricValue>>& values);

  /// Why the last line that could not be written was not; empty when all were.
  const std::string& problem() const { return problem_; }

 private:
  std::string problem_;
  std::filesystem::path path_;
  int file_ = -1;
};

/// The numbers of one metric, by step.
struct MetricSeries {
  std::vector<double> steps;
  std::vector<double> values;
};

/// All numbers that lines of a metrics.jsonl hold under `key`, in the order of the file; lines without it are passed
/// over. An absent file is an empty series.
MetricSeries read_metric(const std::filesystem::path& path, const std::string& key);

}  // namespace lehr::metric
