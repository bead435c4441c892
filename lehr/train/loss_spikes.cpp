#include "lehr/train/loss_spikes.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "lehr/base/error.h"
#include "lehr/metric/metrics_log.h"

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

namespace {
std::vector<double> losses_here(const std::string& dump_folder, int64_t step, int64_t count) {
  const std::filesystem::path file = std::filesystem::path(dump_folder) / "metrics.jsonl";
  const auto labels = metric::read_metric(file, "step_labels");
  std::set<double> empty;  // steps without a label have no loss
  for (size_t i = 0; i < labels.steps.size(); ++i) {
    if (labels.values[i] == 0) {
      empty.insert(labels.steps[i]);
    }
  }
  const auto logged = metric::read_metric(file, "loss");
  std::vector<double> losses;
  for (size_t i = 0; i < logged.steps.size(); ++i) {
    if (logged.steps[i] <= static_cast<double>(step) && !empty.contains(logged.steps[i])) {
      losses.push_back(logged.values[i]);
    }
  }
  const auto extra = static_cast<int64_t>(losses.size()) - count;
  losses.erase(losses.begin(), losses.begin() + std::max<int64_t>(extra, 0));
  return losses;
}
}  // namespace

std::vector<double> losses_before(const std::string& dump_folder, int64_t step, int64_t count, const Ranks& ranks) {
  if (step == 0) {
    return {};
  }
  std::vector<double> losses;
  if (ranks.is_main()) {
    losses = losses_here(dump_folder, step, count);
  }
  if (ranks.context() == nullptr) {
    return losses;
  }
  std::vector<int64_t> length{static_cast<int64_t>(losses.size())};
  ranks.highest(length);
  losses.resize(static_cast<size_t>(length[0]));  // zeros on the other ranks
  if (!losses.empty()) {
    ranks.sum_over_world(at::from_blob(losses.data(), {length[0]}, at::kDouble));
  }
  return losses;
}

}  // namespace lehr::train
