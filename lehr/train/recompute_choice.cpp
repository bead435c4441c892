#include "lehr/train/recompute_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "lehr/base/log.h"

namespace lehr::train {

namespace {
bool is_mode(const std::string& name) {
  return name == "none" || name == "full";
}

std::string quoted(const std::string& name) {
  return is_mode(name) ? name : "\"" + name + "\"";
}

std::string bytes_of(const StepForecast& step) {
  return human_bytes(static_cast<double>(step.with_copy()));
}

std::string flops_of(const StepForecast& step) {
  return step.extra_flops > 0 ? fmt::format(", {:.2g} % more FLOPs", 100 * step.extra_flops) : "";
}
}  // namespace

ActivationCheckpointConfig RecomputeCandidate::config() const {
  ActivationCheckpointConfig config{.mode = is_mode(name) ? name : "selective"};
  if (!is_mode(name)) {
    config.selective_ac_option = name;
  }
  return config;
}

int64_t StepForecast::with_copy() const {
  return peak + copied;
}

const std::vector<std::string>& recompute_candidates() {
  static const std::vector<std::string> kNames{"none", "op 2", "2", "op", "full"};
  return kNames;
}

std::string RecomputeChoice::describe() const {
  std::string text = fmt::format(
      "{}: {}{}, {} {} granted{}",
      quoted(best().name),
      bytes_of(best().step),
      flops_of(best().step),
      fits ? "of" : "more than the",
      human_bytes(static_cast<double>(granted)),
      fits ? "" : ", and no choice needs less");
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i != chosen) {
      const auto& [name, step] = candidates[i];
      text += fmt::format("; {}: {}{}", quoted(name), bytes_of(step), flops_of(step));
    }
  }
  return text;
}

RecomputeChoice choose_recompute(
    const TrainConfig& config,
    int64_t granted,
    const std::function<StepForecast(const TrainConfig& config)>& forecast) {
  RecomputeChoice choice{.granted = granted};
  for (const std::string& name : recompute_candidates()) {
    RecomputeCandidate candidate{.name = name};
    TrainConfig with = config;
    with.activation_checkpoint = candidate.config();
    candidate.step = forecast(with);
    choice.candidates.push_back(candidate);
  }
  auto& all = choice.candidates;
  std::stable_sort(all.begin(), all.end(), [](const RecomputeCandidate& a, const RecomputeCandidate& b) {
    return a.step.extra_flops < b.step.extra_flops;
  });
  const auto least = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
                       return a.step.with_copy() < b.step.with_copy();
                     })->step.with_copy();
  choice.fits = least <= granted;
  const int64_t at_most = std::max(granted, least);
  const auto first =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.step.with_copy() <= at_most; });
  choice.chosen = static_cast<size_t>(first - all.begin());
  return choice;
}

}  // namespace lehr::train
