// Measures a few steps for the table of `lehr train --profile`.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lehr/meter/operator_profile.h"
#include "lehr/meter/profile_clock.h"
#include "lehr/train/config.h"
#include "lehr/train/operator_table.h"

namespace lehr::train {

/// Measures profiling.operator_table_steps steps, after operator_table_warmup steps of warm-up. Observing an operator
/// takes about a microsecond, which is part of the figures. On a GPU it enqueues two events, whose cost shows only if
/// the host is hardly ahead of the device. Used by the training thread.
class StepProfile {
 public:
  /// Throws a usage error if the config requests a table of steps that are recorded as a CUDA graph, in which operators
  /// cannot be distinguished. All ranks call it, before anything is allocated.
  static void check_device(const TrainConfig& config, at::Device device);

  /// `done` is the number of steps before. Times are those of `clock`; null: the clock for the device.
  StepProfile(
      const TrainConfig& config,
      at::Device device,
      int64_t ranks,
      int64_t done,
      std::unique_ptr<ProfileClock> clock = nullptr);

  /// Returns the last step that is measured; a run that ends earlier has no table.
  int64_t last_step() const { return first_ + steps_ - 1; }
  /// True if step_begins takes seconds for this step, because the limits of the machine are measured before it.
  bool measures_machine_before(int64_t step) const { return step == first_; }
  void step_begins(int64_t step);
  void step_ended(int64_t step);

  /// Returns the table once, after the last of the steps. operators.txt and operators.json are then in the folder of
  /// the traces.
  std::optional<std::string> take_table();
  bool is_done() const { return report_.steps == steps_; }
  /// Returns the reason why the files were not written; empty if they were.
  const std::string& problem() const { return problem_; }

 private:
  std::filesystem::path folder_;
  int64_t first_;
  int64_t steps_;
  double measure_seconds_;
  at::ScalarType dtype_;
  at::Device device_;
  OperatorProfile profile_;
  OperatorReport report_;
  double began_ = 0;
  std::optional<std::string> table_;
  std::string problem_;
};

}  // namespace lehr::train
