// Writes metrics.jsonl, and truncates it on resume.
#include "lehr/metric/metrics_log.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/metric/append.h"
#include "lehr/metric/metrics_reader.h"

namespace lehr::metric {
namespace {

using Json = nlohmann::ordered_json;

// Returns the part of `text` that a run keeps when it resumes at `last_step`. Unreadable lines at the end are left by a
// crash and are removed; unreadable lines before readable ones have another cause, and are an error.
std::string kept_lines(std::string_view text, int64_t last_step, const std::filesystem::path& path) {
  std::string kept;
  size_t number = 0;
  size_t unreadable = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const bool complete = end != std::string_view::npos;
    text.remove_prefix(complete ? end + 1 : text.size());
    const auto metrics = complete ? parse_metrics_line(line) : std::nullopt;
    if (!metrics) {
      unreadable = unreadable == 0 ? number : unreadable;
      continue;
    }
    require(
        unreadable == 0,
        "{}, line {}: expected a JSON object with an integer \"step\"; move the file away or fix the line",
        path.string(),
        unreadable);
    if (metrics->step <= last_step) {
      kept.append(line).push_back('\n');
    }
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(std::filesystem::path path, int64_t resume_step) : path_(std::move(path)) {
  if (path_.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    if (error) {
      fail_runtime("{}: the folder cannot be created: {}", path_.parent_path().string(), error.message());
    }
  }
  const std::string before = std::filesystem::exists(path_) ? read_file(path_) : std::string();
  const std::string after = kept_lines(before, resume_step, path_);
  if (before != after) {
    write_file_atomically(path_, after);
  }
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) {
    fail_runtime("{}: cannot be opened for writing: {}", path_.string(), std::strerror(errno));
  }
}

MetricsLog::~MetricsLog() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void MetricsLog::write(int64_t step, const std::vector<std::pair<std::string, MetricValue>>& values) {
  Json object;
  object["step"] = step;
  for (const auto& [name, value] : values) {
    require(!object.contains(name), "{}: the metric occurs twice for step {}", name, step);
    std::visit([&, &key = name](const auto& content) { object[key] = content; }, value);
  }
  // Neither invalid UTF-8 nor a full disk may end a run.
  if (const auto problem = append_whole(file_, object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n")) {
    problem_ = fmt::format("{}: cannot be written: {}; the lines of such steps are skipped", path_.string(), *problem);
  }
}

MetricSeries read_metric(const std::filesystem::path& path, const std::string& key) {
  MetricSeries series;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto metrics = parse_metrics_line(line);
    const auto value = metrics ? metrics->find(key) : std::nullopt;
    if (value && !std::isnan(*value)) {
      series.steps.push_back(static_cast<double>(metrics->step));
      series.values.push_back(*value);
    }
  }
  return series;
}

}  // namespace lehr::metric
