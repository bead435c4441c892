// Writes metrics.jsonl, and cuts it back on resume by writing a new file beside it and renaming.
#include "lehr/metric/metrics_log.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "lehr/base/error.h"

namespace lehr {
namespace {

using Json = nlohmann::ordered_json;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file && std::filesystem::exists(path)) {
    fail_runtime("{}: cannot be read: {}", path.string(), std::strerror(errno));
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_all(int file, std::string_view text, const std::filesystem::path& path) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      fail_runtime("{}: cannot be written: {}", path.string(), std::strerror(errno));
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

int open_file(const std::filesystem::path& path, int flags) {
  const int file = ::open(path.c_str(), flags | O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    fail_runtime("{}: cannot be opened for writing: {}", path.string(), std::strerror(errno));
  }
  return file;
}

std::optional<int64_t> step_of(std::string_view line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("step") || !object["step"].is_number_integer()) {
    return std::nullopt;
  }
  return object["step"].get<int64_t>();
}

// What of `text` a run that resumes at `last_step` keeps. Lines that cannot be read are what a crash leaves at the end
// of a file; with readable ones after them they are something else, and not ours to delete.
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
    const auto step = complete ? step_of(line) : std::nullopt;
    if (!step) {
      unreadable = unreadable == 0 ? number : unreadable;
      continue;
    }
    require(
        unreadable == 0,
        "{}, line {}: expected a JSON object with a whole \"step\"; move the file away or mend the line",
        path.string(),
        unreadable);
    if (*step <= last_step) {
      kept.append(line).push_back('\n');
    }
  }
  return kept;
}

void replace_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path fresh = path;
  fresh += ".new";
  const int file = open_file(fresh, O_TRUNC);
  try {
    write_all(file, text, fresh);
    if (::fsync(file) != 0) {
      fail_runtime("{}: cannot be brought to disk: {}", fresh.string(), std::strerror(errno));
    }
  } catch (...) {
    ::close(file);
    throw;
  }
  ::close(file);
  std::error_code error;
  std::filesystem::rename(fresh, path, error);
  if (error) {
    fail_runtime("{}: cannot be replaced: {}", path.string(), error.message());
  }
}

}  // namespace

MetricsLog::MetricsLog(std::filesystem::path path, int64_t resume_step) : path_(std::move(path)) {
  if (path_.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    if (error) {
      fail_runtime("{}: the folder cannot be made: {}", path_.parent_path().string(), error.message());
    }
  }
  const std::string before = read_file(path_);
  const std::string after = kept_lines(before, resume_step, path_);
  if (before != after) {
    replace_file(path_, after);
  }
  file_ = open_file(path_, O_APPEND);
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
    require(!object.contains(name), "{}: the metric was given twice for step {}", name, step);
    std::visit([&, &key = name](const auto& content) { object[key] = content; }, value);
  }
  // Text that is no UTF-8 must not end a run.
  write_all(file_, object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n", path_);
}

MetricSeries read_metric(const std::filesystem::path& path, const std::string& key) {
  MetricSeries series;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || !object.contains("step") || !object["step"].is_number() || !object.contains(key) ||
        !object[key].is_number()) {
      continue;
    }
    series.steps.push_back(object["step"].get<double>());
    series.values.push_back(object[key].get<double>());
  }
  return series;
}

}  // namespace lehr
