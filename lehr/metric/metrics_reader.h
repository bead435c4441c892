// Reads metrics.jsonl, even while a run appends to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lehr {
class OpenFile;
}

namespace lehr::metric {

/// One line of a metrics.jsonl: numbers that were logged at a step. Those that were not finite are NaN.
struct MetricsLine {
  int64_t step = 0;
  std::vector<std::pair<std::string, double>> values = {};  ///< In the order of the line, without "step".

  /// Returns the value under `key`; nullopt if the line has none.
  std::optional<double> find(std::string_view key) const;
};

/// Parses a line without its line feed. Returns nullopt unless it is a JSON object with an integer "step".
std::optional<MetricsLine> parse_metrics_line(std::string_view line);

/// Reads a metrics.jsonl that another process writes: each call of `read` passes on the lines that are new. It never
/// waits, writes nothing, and holds less than a megabyte besides one line, whatever the length of the file.
class MetricsReader {
 public:
  explicit MetricsReader(std::filesystem::path path);
  ~MetricsReader();
  MetricsReader(const MetricsReader&) = delete;
  MetricsReader& operator=(const MetricsReader&) = delete;

  /// Calls `take` for each whole line that was appended since the last call; a line without its end is left for a later
  /// call. If the file was replaced or truncated since, which a run that resumes does, calls `restart` and begins
  /// again. Returns false if there is no file. Throws a usage error that names the file if it cannot be read.
  bool read(const std::function<void(const MetricsLine&)>& take, const std::function<void()>& restart);

  /// Number of whole lines of this file that hold no metrics.
  int64_t unreadable() const { return unreadable_; }

 private:
  bool open_current(const std::function<void()>& restart);

  std::filesystem::path path_;
  std::unique_ptr<OpenFile> file_;  // stays open, so that no other file gets its inode number
  int64_t offset_ = 0;              // behind the last whole line
  int64_t unreadable_ = 0;
  bool in_long_line_ = false;  // the offset is within a line that is too long to be metrics
};

}  // namespace lehr::metric
