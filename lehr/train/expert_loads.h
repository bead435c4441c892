// The picture expert_load.svg: the load of the experts over a whole run, also of a resumed one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/metric/metrics_log.h"

namespace lehr::train {

/// Records the loads of some steps of a run, at most 64 evenly spaced ones. They are also appended to
/// expert_load.jsonl, from which a resumed run reads those of its earlier steps.
class ExpertLoads {
 public:
  /// Of the run in `folder` after `step` steps, which logs every `log_freq` steps; errors are those of MetricsLog.
  ExpertLoads(std::filesystem::path folder, int64_t step, int64_t log_freq);

  /// Records the counts (MoE layers, E) of a step, if its turn has come.
  void add(int64_t step, const at::Tensor& tokens_per_expert);
  /// Writes expert_load.svg, unless no step was recorded.
  void draw() const;
  /// Returns the reason of the last failed write; empty if all succeeded.
  const std::string& problem() const { return file_.problem(); }

 private:
  struct Row {
    int64_t step = 0;
    std::vector<double> loads = {};  // experts of all MoE layers, sorted together
  };
  void keep(Row row);

  std::filesystem::path folder_;
  int64_t every_;  // steps between rows
  std::vector<Row> rows_;
  metric::MetricsLog file_;
};

}  // namespace lehr::train
