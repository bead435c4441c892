#include "lehr/metric/metrics_reader.h"

#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "lehr/base/error.h"
#include "lehr/base/open_file.h"

namespace lehr::metric {

namespace {
constexpr size_t kLongestLine = size_t{1} << 20;
constexpr size_t kChunk = size_t{1} << 18;
}  // namespace

std::optional<double> MetricsLine::find(std::string_view key) const {
  for (const auto& [name, value] : values) {
    if (name == key) {
      return value;
    }
  }
  return std::nullopt;
}

std::optional<MetricsLine> parse_metrics_line(std::string_view line) {
  if (line.size() > kLongestLine) {
    return std::nullopt;
  }
  const auto object = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return std::nullopt;
  }
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) {
    return std::nullopt;
  }
  MetricsLine result{.step = step->get<int64_t>()};
  result.values.reserve(object.size());
  for (const auto& [key, value] : object.items()) {
    if (key != "step" && (value.is_number() || value.is_null())) {
      result.values.emplace_back(key, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
    }
  }
  return result;
}

MetricsReader::MetricsReader(std::filesystem::path path) : path_(std::move(path)) {}

MetricsReader::~MetricsReader() = default;

bool MetricsReader::open_current(const std::function<void()>& restart) {
  struct stat now {};
  if (::stat(path_.c_str(), &now) != 0) {
    require(errno == ENOENT || errno == ENOTDIR, "{}: cannot be opened: {}", path_.string(), std::strerror(errno));
    return false;
  }
  if (file_) {
    struct stat ours {};
    const bool same =
        ::fstat(file_->descriptor(), &ours) == 0 && ours.st_ino == now.st_ino && ours.st_dev == now.st_dev;
    if (same && ours.st_size >= offset_) {
      return true;
    }
    restart();
  }
  file_ = std::make_unique<OpenFile>(path_);
  offset_ = 0;
  unreadable_ = 0;
  in_long_line_ = false;
  return true;
}

bool MetricsReader::read(const std::function<void(const MetricsLine&)>& take, const std::function<void()>& restart) {
  if (!open_current(restart)) {
    return false;
  }
  std::string text;  // from the offset on
  for (bool more = true; more;) {
    const size_t held = text.size();
    text.resize(held + kChunk);
    const ssize_t got = ::pread(file_->descriptor(), text.data() + held, kChunk, offset_ + static_cast<int64_t>(held));
    require(got >= 0 || errno == EINTR, "{}: cannot be read: {}", path_.string(), std::strerror(errno));
    text.resize(held + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    more = got != 0;
    size_t begin = 0;
    for (size_t end = text.find('\n', held); end != std::string::npos; end = text.find('\n', begin)) {
      const auto line = parse_metrics_line(std::string_view(text).substr(begin, end - begin));
      if (line && !in_long_line_) {
        take(*line);
      } else {
        ++unreadable_;
      }
      in_long_line_ = false;
      begin = end + 1;
    }
    text.erase(0, begin);
    offset_ += static_cast<int64_t>(begin);
    if (text.size() > kLongestLine) {
      in_long_line_ = true;
      offset_ += static_cast<int64_t>(text.size());
      text.clear();
    }
  }
  return true;
}

}  // namespace lehr::metric
