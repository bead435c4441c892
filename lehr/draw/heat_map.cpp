// Draws heat maps: coloured cells, names along the sides, and a colour bar.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lehr/base/error.h"
#include "lehr/draw/plot.h"
#include "lehr/draw/plot_scale.h"
#include "lehr/draw/plot_style.h"
#include "lehr/draw/svg_text.h"

namespace lehr::draw {
namespace {

struct Color {
  double red, green, blue;
};

// Viridis at equal distances: perceptually uniform, even with colour-vision deficiency, on light and dark pages.
constexpr std::array<Color, 9> kViridis = {
    {{68, 1, 84},
     {71, 44, 122},
     {59, 81, 139},
     {44, 113, 142},
     {33, 144, 141},
     {39, 173, 129},
     {92, 200, 99},
     {170, 220, 50},
     {253, 231, 37}}};

Color viridis(double share) {
  const double place = std::clamp(share, 0.0, 1.0) * (kViridis.size() - 1);
  const auto index = std::min(static_cast<size_t>(place), kViridis.size() - 2);
  const double rest = place - static_cast<double>(index);
  const Color &a = kViridis[index], &b = kViridis[index + 1];
  return {a.red + (b.red - a.red) * rest, a.green + (b.green - a.green) * rest, a.blue + (b.blue - a.blue) * rest};
}

std::string hex(const Color& color) {
  return fmt::format(
      "#{:02x}{:02x}{:02x}",
      static_cast<int>(std::lround(color.red)),
      static_cast<int>(std::lround(color.green)),
      static_cast<int>(std::lround(color.blue)));
}

size_t longest(const std::vector<std::string>& names) {
  size_t length = 0;
  for (const auto& name : names) {
    length = std::max(length, name.size());
  }
  return length;
}

std::string text_element(double x, double y, const char* attributes, const std::string& text) {
  return fmt::format("<text x=\"{}\" y=\"{}\" {}>{}</text>\n", pixel(x), pixel(y), attributes, xml_text(text));
}

void check(const HeatMap& map) {
  require(
      map.values.size() == map.rows * map.columns,
      "heat map: {} rows of {} columns need {} values, found {}",
      map.rows,
      map.columns,
      map.rows * map.columns,
      map.values.size());
  require(
      map.row_names.empty() || map.row_names.size() == map.rows,
      "heat map: {} row names for {} rows",
      map.row_names.size(),
      map.rows);
  require(
      map.column_names.empty() || map.column_names.size() == map.columns,
      "heat map: {} column names for {} columns",
      map.column_names.size(),
      map.columns);
}

// Positions in pixels, and the range of the values.
struct Layout {
  static constexpr double kLetter = 7, kTop = 48, kBarSpace = 84;
  double cell_width, cell_height, left, grid_width, grid_height, width, height;
  bool turned;  // Names wider than their column are rotated.
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  explicit Layout(const HeatMap& map)
      : cell_width(std::clamp(640.0 / static_cast<double>(std::max<size_t>(map.columns, 1)), 3.0, 46.0)),
        cell_height(std::clamp(440.0 / static_cast<double>(std::max<size_t>(map.rows, 1)), 3.0, 30.0)),
        left(36 + kLetter * static_cast<double>(longest(map.row_names))),
        grid_width(cell_width * static_cast<double>(map.columns)),
        grid_height(std::max(cell_height * static_cast<double>(map.rows), 40.0)) {
    const double column_name_width = kLetter * static_cast<double>(longest(map.column_names));
    turned = column_name_width > cell_width - 4;
    const double below = 30 + (map.column_names.empty() ? 0 : (turned ? column_name_width : 16)) + 12;
    width = std::max(left + grid_width + kBarSpace, 9 * static_cast<double>(map.title.size()) + left);
    height = kTop + grid_height + below;
    for (const double value : map.values) {
      if (std::isfinite(value)) {
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
  }

  // Returns the place of a value in the range, from 0 to 1.
  double share(double value) const { return high > low ? (value - low) / (high - low) : 0.5; }
};

std::string cells(const HeatMap& map, const Layout& at) {
  std::string svg;
  for (size_t row = 0; row < map.rows; ++row) {
    const double y = Layout::kTop + at.cell_height * static_cast<double>(row);
    if (!map.row_names.empty() && (at.cell_height >= 11 || row % 4 == 0)) {
      svg += text_element(at.left - 8, y + at.cell_height / 2 + 4, "text-anchor=\"end\"", map.row_names[row]);
    }
    for (size_t column = 0; column < map.columns; ++column) {
      const double value = map.values[row * map.columns + column];
      if (!std::isfinite(value)) {
        continue;
      }
      const double x = at.left + at.cell_width * static_cast<double>(column);
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
          pixel(x),
          pixel(y),
          pixel(at.cell_width + 0.3),
          pixel(at.cell_height + 0.3),
          hex(viridis(at.share(value))));
      if (map.show_values) {
        const char* style = at.share(value) > 0.6 ? "text-anchor=\"middle\" style=\"fill:#111;font-size:11px\""
                                                  : "text-anchor=\"middle\" style=\"fill:#fff;font-size:11px\"";
        svg += text_element(x + at.cell_width / 2, y + at.cell_height / 2 + 4, style, short_number(value, 3));
      }
    }
  }
  return svg;
}

std::string column_names(const HeatMap& map, const Layout& at) {
  std::string svg;
  for (size_t column = 0; column < map.column_names.size(); ++column) {
    if (at.turned && at.cell_width < 11 && column % 4 != 0) {
      continue;
    }
    const double x = at.left + at.cell_width * (static_cast<double>(column) + 0.5);
    const double y = Layout::kTop + at.grid_height + (at.turned ? 8 : 16);
    const std::string turn = fmt::format("text-anchor=\"end\" transform=\"rotate(-90 {0} {1})\"", pixel(x), pixel(y));
    svg += text_element(x, y, at.turned ? turn.c_str() : "text-anchor=\"middle\"", map.column_names[column]);
  }
  return svg;
}

std::string color_bar(const Layout& at) {
  constexpr int kBands = 32;
  constexpr double kBarWidth = 14;
  const double bar = at.left + at.grid_width + 16;
  std::string svg;
  for (int band = 0; band < kBands; ++band) {
    const double y = Layout::kTop + at.grid_height * band / kBands;
    svg += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
        pixel(bar),
        pixel(y),
        pixel(kBarWidth),
        pixel(at.grid_height / kBands + 0.3),
        hex(viridis(1 - (band + 0.5) / kBands)));
  }
  svg += text_element(bar + kBarWidth + 6, Layout::kTop + 10, "", short_number(at.high, 3));
  return svg + text_element(bar + kBarWidth + 6, Layout::kTop + at.grid_height, "", short_number(at.low, 3));
}

}  // namespace

std::string heat_map_svg(const HeatMap& map) {
  check(map);
  const Layout at(map);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n",
      pixel(at.width),
      pixel(at.height));
  svg += fmt::format("<title>{}</title>\n{}", xml_text(map.title), kPlotStyle);
  svg += fmt::format("<rect class=\"page\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n", pixel(at.width), pixel(at.height));
  svg += text_element(at.left, 28, "class=\"title\"", map.title);
  svg += cells(map, at) + column_names(map, at);
  svg += text_element(at.left + at.grid_width / 2, at.height - 10, "text-anchor=\"middle\"", map.x_label);
  svg += fmt::format(
      "<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      pixel(Layout::kTop + at.grid_height / 2),
      xml_text(map.y_label));
  if (at.high >= at.low) {
    svg += color_bar(at);
  }
  return svg + "</svg>\n";
}

}  // namespace lehr::draw
