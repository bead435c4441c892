#include "lehr/train/loss_spikes.h"

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::train {

LossSpikes::LossSpikes(const ReliabilityConfig& config, const std::vector<double>& before) : config_(config) {
  for (const double loss : before) {
    see(loss);
  }
}

std::optional<double> LossSpikes::see(double loss) {
  std::optional<double> median;
  if (static_cast<int64_t>(losses_.size()) == config_.spike_window) {
    std::vector<double> sorted(losses_.begin(), losses_.end());
    const auto middle = sorted.begin() + static_cast<int64_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    median = *middle;
    losses_.pop_front();
  }
  losses_.push_back(loss);
  return median && loss > config_.spike_factor * *median ? median : std::nullopt;
}

std::string LossSpikes::describe(int64_t step, double loss, double median) const {
  return fmt::format(
      "step {}: the loss {:.4f} is more than {} times {:.4f}, the median of the last {} steps "
      "(reliability.spike_factor)",
      step,
      loss,
      config_.spike_factor,
      median,
      config_.spike_window);
}

bool LossSpikes::admit(int64_t step, double loss, double median) const {
  if (config_.on_spike == OnSpike::stop) {
    fail_runtime(
        "{}; the update was not applied. Resume from a checkpoint before it, or set reliability.on_spike = \"skip\"",
        describe(step, loss, median));
  }
  return config_.on_spike == OnSpike::warn;
}

}  // namespace lehr::train
