// metrics.jsonl: one JSON object per step, appended during training and truncated on resume.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lehr::metric {

/// The value of a metric. Floating-point numbers are written so that reading restores the same 64 bits; values that are
/// not finite, which JSON lacks, become null.
using MetricValue = std::variant<int64_t, double, std::string>;

/// Writer of metrics.jsonl. The file of a run that was killed and resumed equals that of an uninterrupted one (if the
/// values do).
class MetricsLog {
 public:
  /// Opens `path` for appending and creates its folder. Lines with a step above `resume_step` are removed first, and so
  /// is an incomplete last line of a killed run; the truncated file replaces the old one atomically. A new run passes
  /// -1. Throws a usage error that names the line if a line in the middle is not an object with an integer `step`, and
  /// a runtime error if the file cannot be written.
  MetricsLog(std::filesystem::path path, int64_t resume_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// Appends {"step": step, ...} in the given order with a single write, so that other processes see whole lines. A
  /// line that cannot be written is skipped, see `problem`.
  void write(int64_t step, const std::vector<std::pair<std::string, MetricValue>>& values);

  /// Returns the reason of the last failed write; empty if all succeeded.
  const std::string& problem() const { return problem_; }

 private:
  std::string problem_;
  std::filesystem::path path_;
  int file_ = -1;
};

/// The values of one metric by step.
struct MetricSeries {
  std::vector<double> steps;
  std::vector<double> values;
};

/// Returns all numbers under `key` in a metrics.jsonl, in file order; lines without the key are skipped. A missing file
/// yields an empty series.
MetricSeries read_metric(const std::filesystem::path& path, const std::string& key);

}  // namespace lehr::metric
