// The text of lehr metrics: state of runs, plots and tables.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lehr/app/watched_run.h"

namespace lehr::app {

/// Runs in the order in which they are shown.
using WatchedRuns = std::vector<std::unique_ptr<WatchedRun>>;

/// How metrics are shown.
struct MetricsLayout {
  std::vector<std::string> keys = {};  ///< Metrics to draw, a plot for each; also columns of the table.
  bool plot = true;
  size_t last = 10;  ///< Rows of the table of a single run; several runs have one each. 0: no table.
  int64_t width = 80;
  int64_t plot_height = 12;
  bool ascii = false;
  bool color = false;
};

/// One line: "outputs/quickstart: running, step 640 of 1400, 1m12s left". `follow`: it is followed until it ends.
std::string state_text(const WatchedRun& run, bool follow);

/// The states of all runs, a plot for each key, and the table.
std::string metrics_text(const WatchedRuns& runs, const MetricsLayout& layout, bool follow);

/// A table that grows by rows of equal width. Its columns are the metrics that are known when it begins, the loss and
/// the validation loss.
class GrowingTable {
 public:
  /// `runs` must outlive the table.
  GrowingTable(const WatchedRuns& runs, const MetricsLayout& layout);
  std::string header() const;
  std::string row(const WatchedRun& run, const WatchedRun::Row& row) const;

 private:
  const WatchedRuns& runs_;
  std::vector<std::string> columns_;
  std::vector<size_t> widths_;
};

}  // namespace lehr::app
