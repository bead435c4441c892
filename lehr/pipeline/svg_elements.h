// SVG elements of timeline drawings.
#pragma once

#include <string>
#include <string_view>

namespace lehr::pipeline {

/// Formats a number of bytes as "1.5 GiB".
std::string bytes_text(double bytes);

/// Position (of the upper left corner) and size, in pixels.
struct Box {
  double x, y, width, height;
};

/// Returns a rectangle. `hover` is its tooltip; empty: none.
std::string box_element(const Box& box, std::string_view classes, std::string_view hover);

/// Returns a text element. `attributes` are inserted unchanged, with a space before each.
std::string text_element(double x, double y, std::string_view attributes, std::string_view text);

/// Returns a line from (x1, y1) to (x2, y2).
std::string line_element(std::string_view classes, double x1, double y1, double x2, double y2);

}  // namespace lehr::pipeline
