// Draws line plots: frame, grid, ticks, legend, and one path per series.
#include "lehr/draw/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lehr/base/error.h"
#include "lehr/draw/plot_scale.h"
#include "lehr/draw/plot_style.h"
#include "lehr/draw/svg_text.h"

namespace lehr::draw {
namespace {

constexpr double kLeft = 68, kRight = 24, kTop = 66, kBottom = 52;
constexpr double kLegendCharacter = 7.2;  // generous mean width of a character, as fonts differ

struct Point {
  double x, y;
};
using Run = std::vector<Point>;  // points without a gap

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

bool drawable(double value, bool logarithmic) {
  return std::isfinite(value) && (!logarithmic || value > 0);
}

// Adds a margin around the values, and a minimum extent if all are equal.
Range padded(Range range, bool logarithmic, double share) {
  if (range.empty()) {
    return logarithmic ? Range{1, 10} : Range{0, 1};
  }
  if (logarithmic) {
    const double room = range.low == range.high ? 2 : std::pow(range.high / range.low, share);
    return {range.low / room, range.high * room};
  }
  double room = (range.high - range.low) * share;
  if (range.low == range.high) {
    room = range.low == 0 ? 1 : std::abs(range.low) * 0.1;
  }
  return {range.low - room, range.high + room};
}

// Returns runs of drawable points in pixels. Points in one pixel column are reduced to the first, lowest, highest and
// last.
std::vector<Run> runs_of(
    const std::vector<double>& x,
    const std::vector<double>& y,
    const PlotOptions& options,
    const AxisScale& to_x,
    const AxisScale& to_y) {
  std::vector<Run> runs;
  Run column;
  const auto flush = [&] {
    if (column.size() <= 4) {
      runs.back().insert(runs.back().end(), column.begin(), column.end());
    } else {
      const auto lower = [](const Point& a, const Point& b) { return a.y < b.y; };
      auto [low, high] = std::minmax_element(column.begin() + 1, column.end() - 1, lower);
      if (high < low) {
        std::swap(low, high);
      }
      runs.back().insert(runs.back().end(), {column.front(), *low, *high, column.back()});
    }
    column.clear();
  };
  bool gap = true;
  for (size_t i = 0; i < x.size(); ++i) {
    const bool good = drawable(x[i], options.log_x) && drawable(y[i], options.log_y);
    const Point point = good ? Point{to_x(x[i]), to_y(y[i])} : Point{0, 0};
    if (!column.empty() && (!good || std::floor(point.x) != std::floor(column.front().x))) {
      flush();
    }
    if (good) {
      if (gap) {
        runs.emplace_back();
      }
      column.push_back(point);
    }
    gap = !good;
  }
  if (!column.empty()) {
    flush();
  }
  return runs;
}

std::string path_element(const std::vector<Run>& runs, const std::string& classes) {
  std::string data;
  for (const Run& run : runs) {
    for (size_t i = 0; i < run.size(); ++i) {
      data += (i == 0 ? "M" : "L") + pixel(run[i].x) + " " + pixel(run[i].y);
    }
    if (run.size() == 1) {
      data += "h0.01";  // with round caps, this draws a dot
    }
  }
  return data.empty() ? "" : fmt::format("<path class=\"{}\" d=\"{}\"/>\n", classes, data);
}

std::string dot_element(int color, const Point& point, const std::string& tooltip) {
  const std::string circle =
      fmt::format("<circle class=\"dot f{}\" cx=\"{}\" cy=\"{}\" r=\"3.5\"", color, pixel(point.x), pixel(point.y));
  return circle + (tooltip.empty() ? "/>\n" : fmt::format("><title>{}</title></circle>\n", xml_text(tooltip)));
}

std::string series_elements(
    const PlotSeries& series, int color, const PlotOptions& options, const AxisScale& to_x, const AxisScale& to_y) {
  std::string svg;
  std::vector<double> y = series.y;
  if (series.smoothing > 0) {
    svg += path_element(runs_of(series.x, y, options, to_x, to_y), fmt::format("raw s{}", color));
    y = smoothed(series.y, series.smoothing);
  }
  const auto runs = runs_of(series.x, y, options, to_x, to_y);
  svg += path_element(runs, fmt::format("line s{}", color));
  if (series.markers && !series.tooltips.empty()) {  // every point, as each has its own text
    for (size_t i = 0; i < y.size(); ++i) {
      if (drawable(series.x[i], options.log_x) && drawable(y[i], options.log_y)) {
        svg += dot_element(color, {to_x(series.x[i]), to_y(y[i])}, series.tooltips[i]);
      }
    }
  } else if (series.markers) {
    for (const Run& run : runs) {
      for (const Point& point : run) {
        svg += dot_element(color, point, "");
      }
    }
  }
  return svg;
}

std::string line_element(const char* name, double x1, double y1, double x2, double y2) {
  return fmt::format(
      "<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n",
      name,
      pixel(x1),
      pixel(y1),
      pixel(x2),
      pixel(y2));
}

std::string axes(const PlotOptions& options, const AxisScale& to_x, const AxisScale& to_y) {
  const double right = options.width - kRight, bottom = options.height - kBottom;
  std::string svg;
  // Coordinates at half pixels keep one-pixel lines sharp.
  const auto sharp = [](double value) { return std::floor(value) + 0.5; };
  // On a log axis each label has its own unit; on a linear axis all labels share unit and precision.
  const auto label = [](const std::vector<double>& ticks, size_t i, bool logarithmic) {
    if (logarithmic || ticks.size() < 2) {
      return tick_label(ticks[i], std::abs(ticks[i]), std::abs(ticks[i]));
    }
    return tick_label(ticks[i], ticks[1] - ticks[0], std::max(std::abs(ticks.front()), std::abs(ticks.back())));
  };
  const auto y_ticks = to_y.ticks(6);
  for (size_t i = 0; i < y_ticks.size(); ++i) {
    const double y = to_y(y_ticks[i]);
    svg += line_element("grid", kLeft, sharp(y), right, sharp(y));
    svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
        pixel(kLeft - 8),
        pixel(y + 4),
        label(y_ticks, i, options.log_y));
  }
  const auto x_ticks = to_x.ticks(8);
  for (size_t i = 0; i < x_ticks.size(); ++i) {
    const double x = to_x(x_ticks[i]);
    svg += line_element("grid", sharp(x), kTop, sharp(x), bottom);
    svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
        pixel(x),
        pixel(bottom + 18),
        label(x_ticks, i, options.log_x));
  }
  svg += line_element("axis", kLeft, sharp(bottom), right, sharp(bottom));
  svg += line_element("axis", sharp(kLeft), kTop, sharp(kLeft), bottom);
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
      pixel((kLeft + right) / 2),
      pixel(options.height - 14),
      xml_text(options.x_label));
  svg += fmt::format(
      "<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      pixel((kTop + bottom) / 2),
      xml_text(options.y_label));
  return svg;
}

std::string legend(const std::vector<PlotSeries>& series) {
  std::string svg;
  double x = kLeft;
  for (size_t i = 0; i < series.size(); ++i) {
    std::string text = series[i].name;
    for (size_t j = series[i].y.size(); j-- > 0;) {
      if (std::isfinite(series[i].y[j])) {
        text += "  " + short_number(series[i].y[j]);
        break;
      }
    }
    const int color = static_cast<int>(i) % kSeriesColors;
    svg += fmt::format(
        "<line class=\"line s{}\" x1=\"{}\" y1=\"48\" x2=\"{}\" y2=\"48\"/>\n", color, pixel(x), pixel(x + 18));
    svg += fmt::format("<text class=\"legend\" x=\"{}\" y=\"52\">{}</text>\n", pixel(x + 25), xml_text(text));
    x += 25 + kLegendCharacter * static_cast<double>(text.size()) + 18;
  }
  return svg;
}

}  // namespace

std::vector<double> smoothed(const std::vector<double>& values, double span) {
  const double keep = 1.0 - 2.0 / (std::max(span, 1.0) + 1.0);
  std::vector<double> result = values;
  double sum = 0;
  double weight = 0;
  for (double& value : result) {
    if (std::isfinite(value)) {
      sum = keep * sum + (1 - keep) * value;
      weight = keep * weight + (1 - keep);
      value = sum / weight;
    }
  }
  return result;
}

std::string line_plot_svg(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  Range x_range;
  Range y_range;
  for (const auto& one : series) {
    require(
        one.x.size() == one.y.size(),
        "plot: series \"{}\" has {} x values and {} y values",
        one.name,
        one.x.size(),
        one.y.size());
    require(
        one.tooltips.empty() || one.tooltips.size() == one.x.size(),
        "plot: series \"{}\" has {} x values and {} tooltips",
        one.name,
        one.x.size(),
        one.tooltips.size());
    for (size_t i = 0; i < one.x.size(); ++i) {
      if (drawable(one.x[i], options.log_x) && drawable(one.y[i], options.log_y)) {
        x_range.include(one.x[i]);
        y_range.include(one.y[i]);
      }
    }
  }
  const bool empty = x_range.empty();
  x_range = padded(x_range, options.log_x, 0.0);
  y_range = padded(y_range, options.log_y, 0.05);
  const AxisScale to_x(x_range.low, x_range.high, kLeft, options.width - kRight, options.log_x);
  const AxisScale to_y(y_range.low, y_range.high, options.height - kBottom, kTop, options.log_y);

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n",
      pixel(options.width),
      pixel(options.height));
  svg += fmt::format("<title>{}</title>\n", xml_text(options.title));
  svg += kPlotStyle;
  svg += fmt::format(
      "<rect class=\"page\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n", pixel(options.width), pixel(options.height));
  svg += fmt::format("<text class=\"title\" x=\"{}\" y=\"28\">{}</text>\n", pixel(kLeft), xml_text(options.title));
  svg += legend(series) + axes(options, to_x, to_y);
  for (size_t i = 0; i < series.size(); ++i) {
    svg += series_elements(series[i], static_cast<int>(i) % kSeriesColors, options, to_x, to_y);
  }
  if (empty) {
    svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">no values yet</text>\n",
        pixel(options.width / 2),
        pixel(options.height / 2));
  }
  return svg + "</svg>\n";
}

}  // namespace lehr::draw
