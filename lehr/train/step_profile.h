// Measures where the time of a few steps goes, for the table of `lehr train --profile`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lehr/base/operator_profile.h"
#include "lehr/train/config.h"
#include "lehr/train/operator_table.h"

namespace lehr::train {

/// profiling.operator_table_steps steps, after operator_table_warmup ones that are left to settle. Observing an
/// operator costs about a microsecond, which is part of the figures. Lives on the thread that trains.
class StepProfile {
 public:
  /// Throws a usage error if the config asks for a table of a device whose work goes on after an operator returns. For
  /// all ranks, before anything is allocated.
  static void check_device(const TrainConfig& config, at::Device device);

  /// `done` steps were done before.
  StepProfile(const TrainConfig& config, int64_t ranks, int64_t done);

  /// The last step that is measured; a run that ends before has no table.
  int64_t last_step() const { return first_ + steps_ - 1; }
  /// Whether a step's beginning takes seconds, because the machine is measured before it.
  bool measures_machine_before(int64_t step) const { return step == first_; }
  void step_begins(int64_t step);
  void step_ended(int64_t step);

  /// Once, after the last of the steps. operators.txt and operators.json in the folder of the traces have it then.
  std::optional<std::string> take_table();
  bool is_done() const { return report_.steps == steps_; }
  /// Why the files were not written; empty if they were.
  const std::string& problem() const { return problem_; }

 private:
  std::filesystem::path folder_;
  int64_t first_;
  int64_t steps_;
  double measure_seconds_;
  at::ScalarType dtype_;
  OperatorProfile profile_;
  OperatorReport report_;
  double began_ = 0;
  std::optional<std::string> table_;
  std::string problem_;
};

}  // namespace lehr::train
