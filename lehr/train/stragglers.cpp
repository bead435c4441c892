#include "lehr/train/stragglers.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

#include "lehr/base/log.h"
#include "lehr/train/rank_findings.h"

namespace lehr::train {

namespace {
// The times of one rank, of a fixed size: they are sent to all others.
struct Computed {
  double seconds_per_step = 0;
  int64_t stage = 0;
  int64_t process = 0;
  char host[64] = {};
};

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}
}  // namespace

std::vector<Straggler> find_stragglers(
    const std::vector<double>& seconds, const std::vector<int64_t>& stages, double factor) {
  std::map<int64_t, std::vector<double>> of_stage;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    of_stage[stages.at(rank)].push_back(seconds[rank]);
  }
  std::map<int64_t, double> medians;
  for (auto& [stage, times] : of_stage) {
    medians[stage] = median_of(std::move(times));
  }
  std::vector<Straggler> found;
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    const double median = medians.at(stages[rank]);
    if (seconds[rank] > factor * median) {
      found.push_back({.rank = static_cast<int64_t>(rank), .median = median});
    }
  }
  return found;
}

Stragglers::Stragglers(const TrainConfig& config, const Ranks& ranks, Logger& log)
    : config_(config.reliability),
      file_(std::filesystem::path(config.job.dump_folder) / "rank_times.jsonl"),
      ranks_(ranks),
      log_(log) {}

// Seconds that this rank has computed, since some moment.
double Stragglers::now() const {
  const std::chrono::duration<double> since = std::chrono::steady_clock::now().time_since_epoch();
  return since.count() - (ranks_.context() != nullptr ? ranks_.context()->seconds_waited() : 0);
}

void Stragglers::step_begins() {
  begun_ = now();
}

void Stragglers::step_ended(int64_t step) {
  computed_ += now() - begun_;
  if (++steps_ < config_.straggler_window) {
    return;
  }
  compare(step);
  computed_ = 0;
  steps_ = 0;
}

void Stragglers::compare(int64_t step) {
  Computed here{
      .seconds_per_step = computed_ / static_cast<double>(steps_),
      .stage = ranks_.context() != nullptr ? ranks_.context()->index(mesh::axis::pp) : 0,
      .process = ::getpid()};
  ::gethostname(here.host, sizeof here.host - 1);
  const std::vector<Computed> all = findings_of_all(here, ranks_);
  if (!ranks_.is_main()) {
    return;
  }
  std::vector<double> seconds;
  std::vector<int64_t> stages;
  for (const Computed& one : all) {
    seconds.push_back(one.seconds_per_step);
    stages.push_back(one.stage);
  }
  for (const auto& [rank, median] : find_stragglers(seconds, stages, config_.straggler_factor)) {
    const Computed& late = all[static_cast<size_t>(rank)];
    log_.warn(
        "steps {} to {}: {} on {} (process {}) computed for {:.3g} s per step, {:.1f} times the median of its stage "
        "({:.3g} s); the others wait for it",
        step - steps_ + 1,
        step,
        place_of(ranks_, rank),
        late.host,
        late.process,
        late.seconds_per_step,
        late.seconds_per_step / median,
        median);
  }
  std::ofstream(file_, std::ios::app) << fmt::format(
      "{{\"step\": {}, \"seconds_per_step\": [{:.6g}]}}\n", step, fmt::join(seconds, ", "));
}

}  // namespace lehr::train
