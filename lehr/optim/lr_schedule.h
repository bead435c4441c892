// Learning-rate schedules: the factor on the base learning rate at each step, as a config and a pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/config/fields.h"

namespace lehr::optim {

/// The shape of the decay after warm-up and the constant phase; p runs from 0 to 1.
enum class DecayType {
  linear,  ///< 1 - p
  sqrt,    ///< 1 - sqrt(p)
  cosine,  ///< (1 + cos(pi p)) / 2
};

/// The curve of a phase of a piecewise schedule from its start value a to its target b; p runs from 0 to 1.
enum class PhaseCurve {
  linear,       ///< a + (b - a) p
  cosine,       ///< b + (a - b) (1 + cos(pi p)) / 2
  exponential,  ///< exp(ln a + (ln b - ln a) p), with a and b not below 1e-8
  poly,         ///< a + (b - a) p^power
};

/// The way in which the end of a phase is specified.
enum class PhaseMode {
  steps,       ///< `steps` after the end of the previous phase
  percentage,  ///< at the step round(total_steps * percentage)
  rest,        ///< at total_steps
};

/// One phase of a piecewise schedule: `[[lr_scheduler.phases]]`. It starts where the previous one ended.
struct SchedulePhaseConfig {
  PhaseMode mode = PhaseMode::rest;
  std::optional<int64_t> steps = {};
  std::optional<double> percentage = {};
  double target_multiplier = 1.0;
  PhaseCurve curve = PhaseCurve::linear;
  double power = 2.0;

  void fields(FieldVisitor& v);
};

/// The section `[lr_scheduler]`: warmup-stable-decay (https://arxiv.org/abs/2404.06395), which without a stable phase
/// is plain warm-up and decay; or, if `phases` has entries, these instead.
struct LRSchedulerConfig {
  std::optional<int64_t> warmup_steps;  ///< 200 unless given.
  std::optional<int64_t> total_steps = {};
  std::optional<double> decay_ratio = {};
  DecayType decay_type = DecayType::linear;
  double min_lr_factor = 0.0;
  double initial_multiplier = 0.0;
  std::vector<SchedulePhaseConfig> phases = {};

  void fields(FieldVisitor& v);
  /// Reports values that are invalid by themselves, or, if `total_steps` is given, together with it.
  void check(Problems& problems) const;
  /// Like check(), and reports conflicts with a run of `training_steps` steps, the default of `total_steps`.
  void check(Problems& problems, int64_t training_steps) const;
};

/// A schedule for a run of known length. Immutable; the state of a run is its step number alone.
class LRSchedule {
 public:
  /// `training_steps` is the default of `total_steps`. Throws a usage error that lists all problems that
  /// LRSchedulerConfig::check reports.
  LRSchedule(LRSchedulerConfig config, int64_t training_steps);

  /// Returns the factor at the 0-based step `step`: that of step 0 below 0, and that of the end after it.
  double factor(int64_t step) const;
  /// Returns the number of steps that the schedule spans.
  int64_t total_steps() const { return total_steps_; }

 private:
  struct Phase {
    int64_t first = 0;
    int64_t last = 0;  ///< The first step after the phase.
    double from = 0;
    double to = 0;
    PhaseCurve curve = PhaseCurve::linear;
    double power = 2.0;
  };
  double warmup_stable_decay(int64_t step) const;
  double piecewise(int64_t step) const;

  LRSchedulerConfig config_;
  int64_t total_steps_;
  int64_t decay_steps_ = 0;
  std::vector<Phase> phases_;
};

}  // namespace lehr::optim
