// Scales of drawings: axes that map numbers to pixels, ticks at round numbers, and number formats.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lehr::draw {

/// Maps [low, high] to [begin, end] in pixels, linearly or logarithmically. SVG's y grows downward, so begin > end is
/// usual.
class AxisScale {
 public:
  AxisScale(double low, double high, double begin, double end, bool logarithmic = false);
  double operator()(double value) const;
  /// Returns about `count` round numbers within the range: 1, 2 or 5 times a power of ten.
  std::vector<double> ticks(int count) const;
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double low_, high_, begin_, end_;
  bool logarithmic_;
};

/// Returns a distance between ticks at round numbers, so that about `count` of them cover `range`.
double tick_step(double range, int count);

/// Formats `value` as briefly as ticks at a distance of `step` allow: "0.25", "1,500", "20k", "1.5M". `largest` is the
/// largest value on the axis; it determines the unit, so that all labels of an axis share it.
std::string tick_label(double value, double step, double largest);

/// Formats `value` with `digits` significant digits and without trailing zeros.
std::string short_number(double value, int digits = 4);

}  // namespace lehr::draw
