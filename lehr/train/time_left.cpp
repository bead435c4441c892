#include "lehr/train/time_left.h"

#include "lehr/metric/throughput.h"

namespace lehr::train {

namespace {
// Returns how often work that is due every `every` steps, and after the last one, is done from step `step` on.
int64_t times_due(int64_t step, int64_t last, int64_t every) {
  return last / every - (step - 1) / every + (last % every != 0 ? 1 : 0);
}

bool writes_in_background(const CheckpointConfig& config) {
  return config.async_mode != "disabled";
}
}  // namespace

TimeLeft::TimeLeft(const TrainConfig& config, const WorkBesideSteps& beside) : config_(config), beside_(beside) {}

void TimeLeft::begin(Pause reason) {
  since_ = {reason, metric::ThroughputMeter::steady_seconds()};
}

std::optional<std::pair<TimeLeft::Pause, double>> TimeLeft::end() {
  const auto since = std::exchange(since_, {});
  if (!since) {
    return std::nullopt;
  }
  const double seconds = metric::ThroughputMeter::steady_seconds() - since->second;
  measured_[since->first] = seconds;
  return std::pair(since->first, seconds);
}

double TimeLeft::expected(Pause reason, double step_seconds) const {
  if (const auto found = measured_.find(reason); found != measured_.end()) {
    return found->second;
  }
  if (reason == Pause::validation) {
    constexpr double kForwardShare = 1.0 / 3;
    const auto rows = static_cast<double>(config_.training.rows_per_step());
    return kForwardShare * step_seconds * static_cast<double>(beside_.validation_rows) / rows;
  }
  return static_cast<double>(beside_.save_bytes) /
         (writes_in_background(config_.checkpoint) ? kCopyBytesPerSecond : kSaveBytesPerSecond);
}

double TimeLeft::last_write() const {
  if (!writes_in_background(config_.checkpoint)) {
    return 0;  // part of the save itself
  }
  return write_seconds_.value_or(static_cast<double>(beside_.save_bytes) / kSaveBytesPerSecond);
}

double TimeLeft::seconds(int64_t step, double step_seconds) const {
  const int64_t last = config_.training.steps;
  double seconds = static_cast<double>(last - step) * step_seconds;
  if (config_.validation.enable) {
    seconds +=
        static_cast<double>(times_due(step, last, config_.validation.freq)) * expected(Pause::validation, step_seconds);
  }
  if (config_.checkpoint.enable) {
    seconds +=
        static_cast<double>(times_due(step, last, config_.checkpoint.interval)) * expected(Pause::save, step_seconds) +
        last_write();
  }
  return seconds;
}

}  // namespace lehr::train
