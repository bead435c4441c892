// Drawings of pipeline timelines: one row per rank, one box per action.
#pragma once

#include <string>
#include <vector>

#include "lehr/pipeline/simulate.h"

namespace lehr::pipeline {

/// A timeline and the heading above it.
struct NamedTimeline {
  std::string name;
  Timeline timeline;
};

/// Size and content of a drawing.
struct TimelinePlotOptions {
  std::string title = "Pipeline";
  std::string unit = "s";  ///< Unit of the times that are printed.
  double width = 1100;     ///< Pixels, at least 300.
  double row_height = 22;  ///< Pixels of a rank's row, at least 4. Micro-batch numbers are printed from 11 on.
  bool memory = false;  ///< Draw the memory of each rank below its row, all at one scale, with its peak on the right.
  bool interactive =
      false;  ///< Add the parts that picture_page() reads: tooltips with times, the area to zoom, narrow actions too.
};

/// Returns an SVG file with the timelines below one another on one time scale, readable on light and dark pages. Later
/// stages of a rank are paler. Entries whose members may overlap are framed. Actions narrower than a pixel are drawn
/// together, in the colour of the kind that takes most of their time, so that files of the largest pipelines stay
/// small. Throws a usage error if there is no timeline, or for sizes below the minimum of an option.
std::string timeline_svg(const std::vector<NamedTimeline>& timelines, const TimelinePlotOptions& options);

/// Returns a self-contained HTML page with the same drawing (picture_page()): it can be zoomed, each box has a tooltip
/// with its action and times, and pointing at one highlights its micro-batch. Up to 20,000 actions have boxes of
/// their own.
std::string timeline_html(const std::vector<NamedTimeline>& timelines, TimelinePlotOptions options);

}  // namespace lehr::pipeline
