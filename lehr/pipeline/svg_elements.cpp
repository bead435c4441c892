// SVG elements as text.
#include "lehr/pipeline/svg_elements.h"

#include <fmt/format.h>

#include <array>

#include "lehr/draw/svg_text.h"

namespace lehr::pipeline {

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 6> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) {
    bytes /= 1024;
  }
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

std::string box_element(const Box& box, std::string_view classes, std::string_view hover) {
  const std::string rect = fmt::format(
      "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
      classes,
      pixel(box.x),
      pixel(box.y),
      pixel(box.width),
      pixel(box.height));
  return rect + (hover.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", xml_text(hover)));
}

std::string text_element(double x, double y, std::string_view attributes, std::string_view text) {
  return fmt::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", pixel(x), pixel(y), attributes, xml_text(text));
}

std::string line_element(std::string_view classes, double x1, double y1, double x2, double y2) {
  return fmt::format(
      "<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n",
      classes,
      pixel(x1),
      pixel(y1),
      pixel(x2),
      pixel(y2));
}

}  // namespace lehr::pipeline
