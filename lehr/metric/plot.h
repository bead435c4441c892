// Drawings without a plotting library: lines and heat maps as SVG that reads well on light and dark pages.
#pragma once

#include <string>
#include <vector>

namespace lehr::metric {

/// One line of a plot.
struct PlotSeries {
  std::string name = {};
  std::vector<double> x = {};  ///< Growing.
  std::vector<double> y =
      {};  ///< As many. Values that cannot be drawn (not finite; not above 0 on a log axis) leave a gap.
  /// Draw the raw values faintly and an exponential average over about this many points on top. 0: the raw line only.
  double smoothing = 0;
  bool markers = false;  ///< A dot on every point, for series with few of them.
};

struct PlotOptions {
  std::string title = {};
  std::string x_label = "step";
  std::string y_label = "loss";
  double width = 840;
  double height = 460;
  bool log_x = false;
  bool log_y = false;
};

/// A whole SVG file. The legend shows the last value of each series. Many points are reduced to the lowest and highest
/// of each pixel, so that the file stays small. Throws a usage error when the x and y of a series differ in length.
std::string line_plot_svg(const std::vector<PlotSeries>& series, const PlotOptions& options);

/// Numbers on a grid: attention weights, expert loads, replacement scores.
struct HeatMap {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<std::string> row_names = {};     ///< May be empty.
  std::vector<std::string> column_names = {};  ///< May be empty.
  size_t rows = 0;
  size_t columns = 0;
  std::vector<double> values = {};  ///< Row after row. Not finite: an empty cell.
  bool show_values = false;         ///< Write the number into each cell.
};

/// A whole SVG file with a colour bar. Throws a usage error when the sizes do not fit together.
std::string heat_map_svg(const HeatMap& map);

/// `values` as their exponential moving average over about `span` points, without the pull of the start. Values that
/// are not finite stay and do not count.
std::vector<double> smoothed(const std::vector<double>& values, double span);

}  // namespace lehr::metric
