// SVG line plots and heat maps without a plotting library, readable on light and dark pages.
#pragma once

#include <string>
#include <vector>

namespace lehr::draw {

/// One line of a plot.
struct PlotSeries {
  std::string name = {};
  std::vector<double> x = {};  ///< Ascending.
  /// As many as x. Values that cannot be drawn (not finite; not above 0 on a log axis) leave a gap.
  std::vector<double> y = {};
  /// Draw the raw values faintly and an exponential average over about this many points on top. 0: the raw line only.
  double smoothing = 0;
  bool markers = false;  ///< Draw a dot on every point, for series with few points.
  /// The tooltip of each dot, as many as x, or none: for series with markers.
  std::vector<std::string> tooltips = {};
};

/// Title, axes and size (in pixels) of a line plot.
struct PlotOptions {
  std::string title = {};
  std::string x_label = "step";
  std::string y_label = "loss";
  double width = 840;
  double height = 460;
  bool log_x = false;
  bool log_y = false;
};

/// Returns an SVG file. The legend shows the last value of each series. Dense points are reduced to the lowest and
/// highest of each pixel column, so that the file stays small. Throws a usage error if x, y and tooltips of a series
/// differ in length.
std::string line_plot_svg(const std::vector<PlotSeries>& series, const PlotOptions& options);

/// Values on a grid: attention weights, expert loads, replacement scores.
struct HeatMap {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<std::string> row_names = {};     ///< May be empty.
  std::vector<std::string> column_names = {};  ///< May be empty.
  size_t rows = 0;
  size_t columns = 0;
  std::vector<double> values = {};  ///< Row-major. A value that is not finite leaves its cell empty.
  bool show_values = false;         ///< Print the number in each cell.
};

/// Returns an SVG file with a colour bar. Throws a usage error if the sizes are inconsistent.
std::string heat_map_svg(const HeatMap& map);

/// Returns the exponential moving average of `values` over about `span` points, with bias correction at the start.
/// Values that are not finite are unchanged and do not count.
std::vector<double> smoothed(const std::vector<double>& values, double span);

}  // namespace lehr::draw
