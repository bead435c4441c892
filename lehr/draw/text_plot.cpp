#include "lehr/draw/text_plot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lehr/base/error.h"
#include "lehr/draw/plot_scale.h"

namespace lehr::draw {
namespace {

constexpr int64_t kDotsX = 2, kDotsY = 4;  // of a braille cell
constexpr std::array kCharacters{'*', '+', 'x', '#', '@', '%'};
constexpr std::array kColors{36, 33, 35, 32, 34, 31};  // cyan, yellow, magenta, green, blue, red

struct Cell {
  uint8_t dots = 0;
  char marker = 0;
  size_t series = 0;
};

// U+2800 and the dots' bits, as UTF-8.
std::string braille(uint8_t dots) {
  return {'\xE2', static_cast<char>(0xA0 | dots >> 6), static_cast<char>(0x80 | (dots & 0x3F))};
}

std::string colored(const std::string& text, size_t series, bool color) {
  return color ? fmt::format("\x1b[{}m{}\x1b[0m", kColors.at(series % kColors.size()), text) : text;
}

class Canvas {
 public:
  Canvas(int64_t columns, int64_t rows) : columns_(columns), rows_(rows), cells_(static_cast<size_t>(columns * rows)) {}

  int64_t dots_x() const { return columns_ * kDotsX; }
  int64_t dots_y() const { return rows_ * kDotsY; }

  // Rounding may put a mean beside the canvas.
  void dot(int64_t x, int64_t y, size_t series) {
    x = std::clamp<int64_t>(x, 0, dots_x() - 1);
    y = std::clamp<int64_t>(y, 0, dots_y() - 1);
    static constexpr std::array<std::array<uint8_t, kDotsY>, kDotsX> kBits{
        {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}};
    Cell& cell = at(x, y);
    cell.dots |= kBits.at(static_cast<size_t>(x % kDotsX)).at(static_cast<size_t>(y % kDotsY));
    cell.series = series;
  }
  void marker(int64_t x, int64_t y, size_t series) {
    Cell& cell = at(std::clamp<int64_t>(x, 0, dots_x() - 1), std::clamp<int64_t>(y, 0, dots_y() - 1));
    cell.marker = 'o';
    cell.series = series;
  }

  std::string row(int64_t row, bool characters, bool color) const {
    std::string text;
    std::string run;  // cells of one series
    size_t series = 0;
    const auto flush = [&] {
      text += run.empty() ? "" : colored(run, series, color);
      run.clear();
    };
    for (int64_t column = 0; column < columns_; ++column) {
      const Cell& cell = cells_[static_cast<size_t>(row * columns_ + column)];
      if (cell.marker == 0 && cell.dots == 0) {
        flush();
        text += ' ';
        continue;
      }
      if (cell.series != series) {
        flush();
        series = cell.series;
      }
      run += cell.marker != 0 ? std::string(1, cell.marker)
             : characters     ? std::string(1, kCharacters.at(series % kCharacters.size()))
                              : braille(cell.dots);
    }
    flush();
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  }

 private:
  Cell& at(int64_t x, int64_t y) { return cells_[static_cast<size_t>(y / kDotsY * columns_ + x / kDotsX)]; }

  int64_t columns_, rows_;
  std::vector<Cell> cells_;
};

struct AxisRange {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // A single value gets `room` on both sides, and so do values that differ by rounding only, as means of a constant do.
  AxisRange with_room(double room) const {
    const double size = std::max(std::abs(low), std::abs(high));
    return high - low > 1e-9 * size ? *this : AxisRange{low - room, high + room};
  }
};

bool is_point(const PlotSeries& one, size_t i) {
  return std::abs(one.x[i]) < 1e300 && std::abs(one.y[i]) < 1e300;  // false for NaN; a range of these is finite
}

// The mean of a series in each column of dots; NaN where it has no point.
std::vector<double> columns_of(const PlotSeries& one, const AxisScale& to_x, int64_t columns) {
  std::vector<double> sums(static_cast<size_t>(columns), 0.0);
  std::vector<double> counts(sums.size(), 0.0);
  for (size_t i = 0; i < one.x.size(); ++i) {
    if (is_point(one, i)) {
      const auto column = static_cast<size_t>(std::clamp<int64_t>(std::llround(to_x(one.x[i])), 0, columns - 1));
      sums[column] += one.y[i];
      counts[column] += 1;
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] /= counts[i];  // 0 / 0 is NaN
  }
  return sums;
}

void draw_line(Canvas& canvas, const PlotSeries& one, size_t index, const AxisScale& to_x, const AxisScale& to_y) {
  const std::vector<double> means = columns_of(one, to_x, canvas.dots_x());
  int64_t before_x = -1, before_y = 0;
  for (int64_t x = 0; x < canvas.dots_x(); ++x) {
    const double mean = means[static_cast<size_t>(x)];
    if (std::isnan(mean)) {
      continue;
    }
    const int64_t y = std::llround(to_y(mean));
    canvas.dot(x, y, index);
    int64_t last_y = before_y;
    for (int64_t between = before_x + 1; before_x >= 0 && between <= x; ++between) {
      const double share = static_cast<double>(between - before_x) / static_cast<double>(x - before_x);
      const int64_t here = std::llround(static_cast<double>(before_y) + share * static_cast<double>(y - before_y));
      const int64_t direction = here < last_y ? -1 : 1;
      for (int64_t step = here; step != last_y; step -= direction) {  // no gap where it is steep
        canvas.dot(between, step, index);
      }
      canvas.dot(between, here, index);
      last_y = here;
    }
    before_x = x;
    before_y = y;
  }
}

std::string legend(const std::vector<PlotSeries>& series, bool characters, bool color) {
  std::string text;
  for (size_t i = 0; i < series.size(); ++i) {
    size_t last = series[i].x.size();
    while (last > 0 && !is_point(series[i], last - 1)) {
      --last;
    }
    if (last > 0) {
      const std::string sign = series[i].markers ? "o"
                               : characters      ? std::string(1, kCharacters.at(i % kCharacters.size()))
                                                 : braille(0x12) + braille(0x12);
      text += fmt::format(
          "{}{} {} {}",
          text.empty() ? "" : "   ",
          colored(sign, i, color),
          series[i].name,
          short_number(series[i].y[last - 1]));
    }
  }
  return text;
}

std::vector<std::string> labels_of(const std::vector<double>& ticks) {
  std::vector<std::string> labels;
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : std::abs(ticks.empty() ? 1 : ticks[0]);
  for (const double tick : ticks) {
    labels.push_back(tick_label(tick, step, std::max(std::abs(ticks.front()), std::abs(ticks.back()))));
  }
  return labels;
}

// Labels below their ticks, as far as there is room between them.
std::string x_labels(const std::vector<double>& ticks, const AxisScale& to_x, int64_t columns) {
  const auto labels = labels_of(ticks);
  std::string line;
  for (size_t i = 0; i < ticks.size(); ++i) {
    const auto width = static_cast<int64_t>(labels[i].size());
    const int64_t centered = std::llround(to_x(ticks[i])) / kDotsX - width / 2;
    const auto at = static_cast<size_t>(std::clamp<int64_t>(centered, 0, std::max<int64_t>(columns - width, 0)));
    if (line.empty() || at > line.size()) {
      line.resize(at, ' ');
      line += labels[i];
    }
  }
  return line;
}

}  // namespace

std::string text_plot(const std::vector<PlotSeries>& series, const TextPlotOptions& options) {
  AxisRange x, y;
  size_t curves = 0;
  for (const PlotSeries& one : series) {
    require(one.x.size() == one.y.size(), "{}: {} steps and {} values", one.name, one.x.size(), one.y.size());
    curves += one.markers ? 0 : 1;
    for (size_t i = 0; i < one.x.size(); ++i) {
      if (is_point(one, i)) {
        x.include(one.x[i]);
        y.include(one.y[i]);
      }
    }
  }
  if (x.low > x.high) {
    return "";
  }
  x = x.with_room(std::max(1.0, 1e-6 * std::abs(x.high)));
  y = y.with_room(y.low == 0 ? 1 : std::abs(y.low) * 0.1);
  const int64_t rows = std::max<int64_t>(options.height, 3);
  const auto last_row = static_cast<double>(rows * kDotsY - 1);
  const AxisScale to_y(y.low, y.high, last_row, 0);
  const auto y_ticks = to_y.ticks(static_cast<int>(std::max<int64_t>(rows / 3, 2)));
  std::vector<std::string> labels(static_cast<size_t>(rows));
  size_t label_width = 1;
  for (size_t i = 0; i < y_ticks.size(); ++i) {
    std::string& label = labels[static_cast<size_t>(std::llround(to_y(y_ticks[i])) / kDotsY)];
    label = labels_of(y_ticks)[i];
    label_width = std::max(label_width, label.size());
  }
  const int64_t columns = std::max<int64_t>(options.width - static_cast<int64_t>(label_width) - 2, 20);
  const AxisScale to_x(x.low, x.high, 0, static_cast<double>(columns * kDotsX - 1));
  const auto x_ticks = to_x.ticks(static_cast<int>(columns / 14 + 1));

  Canvas canvas(columns, rows);
  for (size_t index = 0; index < series.size(); ++index) {
    if (!series[index].markers) {
      draw_line(canvas, series[index], index, to_x, to_y);
    }
  }
  for (size_t index = 0; index < series.size(); ++index) {
    for (size_t i = 0; series[index].markers && i < series[index].x.size(); ++i) {
      if (is_point(series[index], i)) {
        canvas.marker(std::llround(to_x(series[index].x[i])), std::llround(to_y(series[index].y[i])), index);
      }
    }
  }

  const bool characters = options.ascii || (curves > 1 && !options.color);
  const auto axis = [&](const char* unicode, const char* ascii) { return options.ascii ? ascii : unicode; };
  std::string text = legend(series, characters, options.color) + "\n";
  for (int64_t row = 0; row < rows; ++row) {
    const std::string& label = labels[static_cast<size_t>(row)];
    const char* line = label.empty() ? axis("│", "|") : axis("┤", "+");
    text += fmt::format("{:>{}} {}{}\n", label, label_width, line, canvas.row(row, characters, options.color));
  }
  std::vector<const char*> line(static_cast<size_t>(columns), axis("─", "-"));
  for (const double tick : x_ticks) {
    line[static_cast<size_t>(std::llround(to_x(tick)) / kDotsX)] = axis("┬", "+");
  }
  text += fmt::format("{:>{}} {}{}\n", "", label_width, axis("└", "+"), fmt::join(line, ""));
  return text + fmt::format("{:>{}}  {}\n", "", label_width, x_labels(x_ticks, to_x, columns));
}

}  // namespace lehr::draw
