// Draws timelines of pipelines: one row a rank, one box an action.
#pragma once

#include <string>
#include <vector>

#include "lehr/pipeline/simulate.h"

namespace lehr::pipeline {

/// A timeline with what stands above it.
struct NamedTimeline {
  std::string name;
  Timeline timeline;
};

struct TimelinePlotOptions {
  std::string title = "Pipeline";
  std::string unit = "s";     ///< Of times, where they are written.
  double width = 1100;        ///< Pixels, at least 300.
  double row_height = 22;     ///< Pixels of a rank's row, at least 4. Microbatch numbers are written from 11 on.
  bool memory = false;        ///< Below each row what the rank holds, all at one scale, with its peak at the right.
  bool hover_titles = false;  ///< Each box tells its action and times when pointed at; browsers show that.
};

/// A whole SVG file with the timelines below one another at one scale of time, which reads well on light and dark
/// pages. Later stages of a rank are paler. Entries whose members may overlap are framed. Actions narrower than a pixel
/// are drawn together, in the colour of what most of their time is, so that the largest pipelines stay a small file.
/// Throws a usage error if there is no timeline, or for sizes below those above.
std::string timeline_svg(const std::vector<NamedTimeline>& timelines, const TimelinePlotOptions& options);

/// A page that needs no other file: the same drawing, and hovering over a box tells its action and times.
std::string timeline_html(const std::vector<NamedTimeline>& timelines, TimelinePlotOptions options);

}  // namespace lehr::pipeline
