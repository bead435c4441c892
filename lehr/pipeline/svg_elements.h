// The pieces of SVG that timelines are drawn with.
#pragma once

#include <string>
#include <string_view>

namespace lehr::pipeline {

/// "1.5 GiB".
std::string bytes_text(double bytes);

/// A distance between ticks of 1, 2 or 5 times a power of ten, for about ten of them in `range` (above 0).
double tick_step(double range);

struct Box {
  double x, y, width, height;
};

/// A rectangle; `hover` is what it tells when pointed at, or empty.
std::string box_element(const Box& box, std::string_view classes, std::string_view hover);

/// `attributes` stand as they are, with a blank before each.
std::string text_element(double x, double y, std::string_view attributes, std::string_view text);

std::string line_element(std::string_view classes, double x1, double y1, double x2, double y2);

}  // namespace lehr::pipeline
