// The formulas of the learning-rate schedules, and the checks that their parts do not overlap.
#include "lehr/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lehr/base/error.h"

namespace lehr::optim {
namespace {
constexpr int64_t kDefaultWarmupSteps = 200;

int64_t warmup_of(const LRSchedulerConfig& config) {
  return config.warmup_steps.value_or(kDefaultWarmupSteps);
}

double cosine_from_one(double p) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * p));
}

// Ties round to even, as in Python's round, so that configs keep their meaning.
int64_t share_of(int64_t total, double share) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(total) * share));
}

int64_t decay_steps_of(const LRSchedulerConfig& config, int64_t total) {
  return config.decay_ratio ? share_of(total, *config.decay_ratio) : total - warmup_of(config);
}

int64_t phase_end(const SchedulePhaseConfig& phase, int64_t begin, int64_t total) {
  switch (phase.mode) {
    case PhaseMode::steps:
      return begin + phase.steps.value_or(0);
    case PhaseMode::percentage:
      return share_of(total, phase.percentage.value_or(0));
    case PhaseMode::rest:
      return total;
  }
  return total;
}

std::string phase_key(size_t index, const char* field) {
  return fmt::format("lr_scheduler.phases.{}.{}", index, field);
}

void check_phases(const std::vector<SchedulePhaseConfig>& phases, Problems& problems) {
  for (size_t i = 0; i < phases.size(); ++i) {
    const auto& phase = phases[i];
    if (phase.mode == PhaseMode::steps && phase.steps.value_or(0) <= 0) {
      problems.add(phase_key(i, "steps"), "a phase with mode \"steps\" needs a number of steps above 0");
    }
    if (phase.mode != PhaseMode::steps && phase.steps) {
      problems.add(phase_key(i, "steps"), "belongs to mode \"steps\" only; remove it or change the mode");
    }
    if (phase.mode == PhaseMode::percentage && !phase.percentage) {
      problems.add(phase_key(i, "percentage"), "a phase with mode \"percentage\" needs a percentage between 0 and 1");
    }
    if (phase.mode != PhaseMode::percentage && phase.percentage) {
      problems.add(phase_key(i, "percentage"), "belongs to mode \"percentage\" only; remove it or change the mode");
    }
    if (phase.mode == PhaseMode::rest && i + 1 != phases.size()) {
      problems.add(phase_key(i, "mode"), "\"rest\" runs to the end of training, so it must be the last phase");
    }
  }
}

void check_phases_fit(const std::vector<SchedulePhaseConfig>& phases, int64_t total, Problems& problems) {
  int64_t begin = 0;
  for (size_t i = 0; i < phases.size(); ++i) {
    const int64_t end = phase_end(phases[i], begin, total);
    if (end < begin) {
      problems.add(
          phase_key(i, "percentage"),
          fmt::format(
              "the phase would end at step {}, before it begins at step {} (total_steps {})", end, begin, total));
      return;
    }
    if (end > total) {
      problems.add(
          phase_key(i, "steps"),
          fmt::format("the phase would end at step {}, after the last of {} steps; shorten it", end, total));
      return;
    }
    begin = end;
  }
}

void check_decay_fits(const LRSchedulerConfig& config, int64_t total, Problems& problems) {
  if (warmup_of(config) > total) {
    problems.add(
        "lr_scheduler.warmup_steps",
        fmt::format(
            "must not exceed the {} steps of the run, found {}{}; lower it",
            total,
            warmup_of(config),
            config.warmup_steps ? "" : ", its default"));
    return;
  }
  const int64_t decay = decay_steps_of(config, total);
  if (warmup_of(config) + decay > total) {
    problems.add(
        "lr_scheduler.decay_ratio",
        fmt::format(
            "{} warm-up steps and {} decay steps (decay_ratio {}) do not fit into {} steps; lower one of them",
            warmup_of(config),
            decay,
            config.decay_ratio.value_or(0),
            total));
  }
}

double curve_value(PhaseCurve curve, double power, double from, double to, double p) {
  constexpr double kSmallest = 1e-8;  // an exponential cannot start from 0
  switch (curve) {
    case PhaseCurve::linear:
      return from + (to - from) * p;
    case PhaseCurve::cosine:
      return to + (from - to) * cosine_from_one(p);
    case PhaseCurve::exponential: {
      const double log_from = std::log(std::max(from, kSmallest));
      const double log_to = std::log(std::max(to, kSmallest));
      return std::exp(log_from + (log_to - log_from) * p);
    }
    case PhaseCurve::poly:
      return from + (to - from) * std::pow(p, power);
  }
  return to;
}

}  // namespace

void SchedulePhaseConfig::fields(FieldVisitor& v) {
  v.choice(
      "mode",
      mode,
      {{"steps", PhaseMode::steps}, {"percentage", PhaseMode::percentage}, {"rest", PhaseMode::rest}},
      "The end of the phase: after a number of steps, at a share of all steps, or at the end of the run.");
  v.optional("steps", steps, "Length of the phase in steps, for mode \"steps\".", positive());
  v.optional(
      "percentage",
      percentage,
      "The phase ends at this share (0 to 1) of all steps, for mode \"percentage\".",
      between(0, 1));
  v.optional(
      "target_multiplier", target_multiplier, "Factor of the base learning rate at the end of the phase.", at_least(0));
  v.choice(
      "curve",
      curve,
      {{"linear", PhaseCurve::linear},
       {"cosine", PhaseCurve::cosine},
       {"exponential", PhaseCurve::exponential},
       {"poly", PhaseCurve::poly}},
      "The curve from the last multiplier to the target.");
  v.optional("power", power, "The exponent of curve \"poly\".", positive());
}

void LRSchedulerConfig::fields(FieldVisitor& v) {
  v.optional(
      "warmup_steps",
      warmup_steps,
      "Steps over which the learning rate rises linearly from 0; unset: 200.",
      at_least(0));
  v.optional(
      "total_steps",
      total_steps,
      "Length of the schedule in steps; unset: training.steps. Steps after its end keep its last learning rate.",
      positive());
  v.optional(
      "decay_ratio",
      decay_ratio,
      "Share of all steps (0 to 1) over which the learning rate falls at the end; unset: everything after "
      "warm-up.",
      between(0, 1));
  v.choice(
      "decay_type",
      decay_type,
      {{"linear", DecayType::linear}, {"sqrt", DecayType::sqrt}, {"cosine", DecayType::cosine}},
      "The shape of the decay.");
  v.optional(
      "min_lr_factor", min_lr_factor, "The decay ends at this multiple of the base learning rate.", between(0, 1));
  v.optional(
      "initial_multiplier",
      initial_multiplier,
      "Start of the first of `phases`, as a multiple of the base learning rate.",
      at_least(0));
  v.list("phases", phases, "A piecewise schedule instead of warm-up and decay: its phases in order.");
}

void LRSchedulerConfig::check(Problems& all_problems) const {
  Problems problems;
  check_phases(phases, problems);
  if (!phases.empty() && warmup_steps) {
    problems.add("lr_scheduler.warmup_steps", "has no effect with `phases`; make the warm-up a phase");
  }
  if (!phases.empty() && decay_ratio) {
    problems.add("lr_scheduler.decay_ratio", "has no effect with `phases`; remove one of the two");
  }
  if (!phases.empty() && decay_type != DecayType::linear) {
    problems.add("lr_scheduler.decay_type", "has no effect with `phases`; set the `mode` of a phase");
  }
  if (!phases.empty() && min_lr_factor != 0) {
    problems.add("lr_scheduler.min_lr_factor", "has no effect with `phases`; set the target of the last phase");
  }
  if (phases.empty() && initial_multiplier != 0) {
    problems.add("lr_scheduler.initial_multiplier", "has no effect without `phases`");
  }
  // A number of steps that is not positive is reported by its own rule.
  if (total_steps && *total_steps > 0 && problems.empty()) {
    phases.empty() ? check_decay_fits(*this, *total_steps, problems) : check_phases_fit(phases, *total_steps, problems);
  }
  for (const auto& item : problems.items()) {
    all_problems.add(item.key, item.message);
  }
}

void LRSchedulerConfig::check(Problems& problems, int64_t training_steps) const {
  LRSchedulerConfig complete = *this;
  complete.total_steps = total_steps.value_or(training_steps);
  complete.check(problems);
}

LRSchedule::LRSchedule(LRSchedulerConfig config, int64_t training_steps)
    : config_(std::move(config)), total_steps_(config_.total_steps.value_or(training_steps)) {
  Problems problems;
  config_.check(problems, training_steps);
  std::string text;
  for (const auto& item : problems.items()) {
    text += (text.empty() ? "" : "\n") + item.key + ": " + item.message;
  }
  require(problems.empty(), "{}", text);

  decay_steps_ = config_.phases.empty() ? decay_steps_of(config_, total_steps_) : 0;
  int64_t begin = 0;
  double value = config_.initial_multiplier;
  for (const auto& phase : config_.phases) {
    const int64_t end = phase_end(phase, begin, total_steps_);
    phases_.push_back(
        {.first = begin,
         .last = end,
         .from = value,
         .to = phase.target_multiplier,
         .curve = phase.curve,
         .power = phase.power});
    begin = end;
    value = phase.target_multiplier;
  }
}

double LRSchedule::factor(int64_t step) const {
  return phases_.empty() ? warmup_stable_decay(std::max<int64_t>(step, 0)) : piecewise(step);
}

double LRSchedule::warmup_stable_decay(int64_t step) const {
  if (step < warmup_of(config_)) {
    return static_cast<double>(step + 1) / static_cast<double>(warmup_of(config_));
  }
  // One step more than the run has: the decay would end there, so no real step has a learning rate of 0.
  const int64_t decay_begins = total_steps_ + 1 - decay_steps_;
  if (step < decay_begins || decay_steps_ == 0) {
    return 1.0;
  }
  const double p = std::min(1.0, static_cast<double>(step + 1 - decay_begins) / static_cast<double>(decay_steps_));
  double falling = 1.0 - p;
  if (config_.decay_type == DecayType::sqrt) {
    falling = 1.0 - std::sqrt(p);
  } else if (config_.decay_type == DecayType::cosine) {
    falling = cosine_from_one(p);
  }
  return config_.min_lr_factor + (1.0 - config_.min_lr_factor) * falling;
}

double LRSchedule::piecewise(int64_t step) const {
  if (step < 0) {
    return config_.initial_multiplier;
  }
  for (const auto& phase : phases_) {
    if (step < phase.last) {
      const double p = static_cast<double>(step - phase.first) / static_cast<double>(phase.last - phase.first);
      return curve_value(phase.curve, phase.power, phase.from, phase.to, p);
    }
  }
  return phases_.back().to;
}

}  // namespace lehr::optim
