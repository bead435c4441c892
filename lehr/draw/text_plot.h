// Line plots for a terminal, of braille dots or ASCII characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lehr/draw/plot.h"

namespace lehr::draw {

/// Size and characters of a plot for a terminal.
struct TextPlotOptions {
  int64_t width = 80;   ///< Columns of the terminal, with the labels of the y axis; at least 30.
  int64_t height = 12;  ///< Rows of the curves, without the legend and the x axis (two rows); at least 3.
  bool ascii = false;   ///< One character for each cell, instead of 2 x 4 dots.
  bool color = false;   ///< A colour for each series, by escape codes of terminals.
};

/// Returns lines with line feeds: a legend with the last value of each series, the curves, and an x axis. Each column
/// of dots shows the mean of its points. Series with markers are drawn as an "o" for each point. Without colour, the
/// curves of several series are drawn with a character for each, as with `ascii`. `smoothing` and `tooltips` have no
/// effect. Series without a point that can be drawn are left out; if all are, the result is empty. Throws a usage error
/// if x and y of a series differ in length.
std::string text_plot(const std::vector<PlotSeries>& series, const TextPlotOptions& options);

}  // namespace lehr::draw
