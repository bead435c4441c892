// Ranks that compute for longer than the others, which then wait for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lehr/base/log.h"
#include "lehr/train/config.h"
#include "lehr/train/ranks.h"

namespace lehr::train {

/// A rank that computed for more than a factor times the median of its pipeline stage.
struct Straggler {
  int64_t rank = 0;
  double median = 0;  ///< Seconds of its stage's ranks.
  bool operator==(const Straggler&) const = default;
};

/// Returns the stragglers among ranks that computed for `seconds`, ascending by rank. Ranks are compared with those of
/// their `stage` only, since stages have different layers; a stage of one rank has none. Of an even number of ranks,
/// the median is the lower of the two in the middle: of two ranks, one can be late.
std::vector<Straggler> find_stragglers(
    const std::vector<double>& seconds, const std::vector<int64_t>& stages, double factor);

/// Measures the time of each step in which this rank computes, and does not wait for others, by the host's clock. Every
/// reliability.straggler_window steps all ranks exchange their times. The main rank logs the stragglers, with their
/// hosts and processes, and appends the times to rank_times.jsonl in the run's folder.
class Stragglers {
 public:
  /// `ranks` and `log` must outlive the object.
  Stragglers(const TrainConfig& config, const Ranks& ranks, Logger& log);

  void step_begins();
  /// Call it when the step has been updated. All ranks must call it.
  void step_ended(int64_t step);

 private:
  double now() const;
  void compare(int64_t step);

  ReliabilityConfig config_;
  std::filesystem::path file_;
  const Ranks& ranks_;
  Logger& log_;
  double begun_ = 0;
  double computed_ = 0;  // since the last exchange
  int64_t steps_ = 0;    // since the last exchange
};

}  // namespace lehr::train
