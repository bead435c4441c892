// The time that the rest of a run takes: its steps, validations and saves.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "lehr/train/config.h"

namespace lehr::train {

/// The size of the work besides the steps, for estimates until it was measured; 0: no estimate, it takes no time.
struct WorkBesideSteps {
  int64_t validation_rows = 0;  ///< Sequences of one validation, of all ranks.
  int64_t save_bytes = 0;       ///< Bytes that this rank writes in one save.
};

/// Estimates the rest of a run. Validations and saves are expected to take as long as the last ones. Before the first,
/// a validation takes a third of the time in which steps train as many sequences (a forward, without its backward), and
/// a save writes kSaveBytesPerSecond, or copies kCopyBytesPerSecond if it is asynchronous.
class TimeLeft {
 public:
  /// The work for which training pauses.
  enum class Pause { validation, save };
  static constexpr double kSaveBytesPerSecond = 0.5e9;
  static constexpr double kCopyBytesPerSecond = 4e9;

  /// `config` must outlive the object.
  explicit TimeLeft(const TrainConfig& config, const WorkBesideSteps& beside = {});

  void begin(Pause reason);
  /// Returns the pause that ended, and its seconds; nullopt if none had begun.
  std::optional<std::pair<Pause, double>> end();
  /// The time in which a save was written in the background. The run waits for the last one.
  void wrote(double seconds) { write_seconds_ = seconds; }

  /// Returns the expected seconds after step `step`: its own validation and save, and all steps, validations and saves
  /// that follow, up to the last byte of the last checkpoint.
  double seconds(int64_t step, double step_seconds) const;

 private:
  double expected(Pause reason, double step_seconds) const;
  double last_write() const;

  const TrainConfig& config_;
  WorkBesideSteps beside_;
  std::map<Pause, double> measured_;  // the last ones
  std::optional<double> write_seconds_;
  std::optional<std::pair<Pause, double>> since_;
};

}  // namespace lehr::train
