#include "lehr/app/watched_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/toml.h"
#include "lehr/train/run_lock.h"

namespace lehr::app {

namespace {
constexpr size_t kMeanSteps = 20;        // as for the time left in the log
constexpr size_t kMaxNewRows = 10'000;   // between two updates of a program that was suspended
constexpr size_t kMaxKnownKeys = 1'000;  // of a file that is not a run's
}  // namespace

WatchedRun::WatchedRun(std::filesystem::path folder, std::string name, std::vector<std::string> keys, size_t rows)
    : folder_(std::move(folder)), name_(std::move(name)), max_rows_(rows), reader_(folder_ / "metrics.jsonl") {
  for (const std::string& key : keys) {
    series_[key];
    series_[kValidation + key];
  }
}

bool WatchedRun::update() {
  // Before the lines, because a run that has released its lock has written all of them.
  const auto locked = train::is_locked(folder_);
  new_rows_.clear();
  read_steps();
  const int64_t lines_before = lines_;
  const bool has_file = reader_.read([&](const auto& line) { take(line); }, [&] { restart(); });
  repeated_up_to_ = -1;
  const bool has_news = lines_ != lines_before;
  was_running_ = was_running_ || locked == true;
  // The last lines of a run that has just ended are no sign of it: the lock must look free before them, too.
  const bool was_unlocked = std::exchange(locked_, locked) != true && !first_update_;
  grows_unlocked_ = locked != true && (grows_unlocked_ || (has_news && was_unlocked));
  const State before = std::exchange(state_, state_of(has_file, locked));
  return std::exchange(first_update_, false) || has_news || state_ != before;
}

WatchedRun::State WatchedRun::state_of(bool has_file, std::optional<bool> locked) const {
  const bool has_all = steps_ && !rows_.empty() && rows_.back().metrics.step >= *steps_;
  if (has_all && locked != true) {
    return State::complete;
  }
  if (!has_file || rows_.empty()) {
    return has_file ? State::no_steps : State::absent;
  }
  return locked == true ? State::running : locked == false && !grows_unlocked_ ? State::stopped : State::unknown;
}

void WatchedRun::take(const metric::MetricsLine& line) {
  ++lines_;
  for (const auto& [key, value] : line.values) {
    if (known_keys_.size() < kMaxKnownKeys) {
      known_keys_.insert(key);
    }
    if (const auto found = series_.find(key); found != series_.end()) {
      found->second.add(line.step, value);
    }
  }
  if (const auto seconds = line.find("step_seconds"); seconds && std::isfinite(*seconds)) {
    step_seconds_.push_back(*seconds);
    if (step_seconds_.size() > kMeanSteps) {
      step_seconds_.pop_front();
    }
  }
  const double sum = std::accumulate(step_seconds_.begin(), step_seconds_.end(), 0.0);
  const Row row{line, step_seconds_.empty() ? 0 : sum / static_cast<double>(step_seconds_.size())};
  if (!first_update_ && line.step > repeated_up_to_ && new_rows_.size() < kMaxNewRows) {
    new_rows_.push_back(row);
  }
  if (!rows_.empty() && rows_.back().metrics.step == line.step) {
    auto& values = rows_.back().metrics.values;
    for (const auto& [key, value] : line.values) {
      const auto same =
          std::find_if(values.begin(), values.end(), [&, &key = key](const auto& one) { return one.first == key; });
      if (same != values.end()) {
        same->second = value;
      } else if (values.size() < kMaxKnownKeys) {
        values.emplace_back(key, value);
      }
    }
    return;
  }
  rows_.push_back(row);
  if (rows_.size() > max_rows_) {
    rows_.pop_front();
  }
}

void WatchedRun::restart() {
  ++lines_;  // a change, even if no line follows
  repeated_up_to_ = rows_.empty() ? -1 : rows_.back().metrics.step;
  rows_.clear();
  step_seconds_.clear();
  for (auto& [key, series] : series_) {
    series.clear();
  }
}

void WatchedRun::read_steps() {
  const auto path = folder_ / "config.toml";
  std::error_code error;
  const auto time = std::filesystem::last_write_time(path, error);
  if (error || config_time_ == time) {
    return;
  }
  config_time_ = time;
  steps_.reset();
  try {
    const Node config = parse_toml(read_file(path), path.string());
    const Node* const training = config.find("training");
    const Node* const steps = training != nullptr ? training->find("steps") : nullptr;
    steps_ = steps != nullptr ? std::optional(steps->as_int()) : std::nullopt;
  } catch (const Error&) {
    // The number of steps is missing from the output; the metrics are not.
  }
}

std::optional<double> WatchedRun::seconds_left(const Row& row) const {
  if (!steps_ || row.step_seconds <= 0) {
    return std::nullopt;
  }
  return row.step_seconds * static_cast<double>(std::max<int64_t>(*steps_ - row.metrics.step, 0));
}

}  // namespace lehr::app
