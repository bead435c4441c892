// What every drawing needs: axes that map numbers to pixels, ticks at round numbers, and text that is safe in SVG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lehr::metric {

/// Maps [low, high] to [begin, end] in pixels, linearly or by logarithm. SVG's y grows downward, so begin > end is
/// usual.
class AxisScale {
 public:
  AxisScale(double low, double high, double begin, double end, bool logarithmic = false);
  double operator()(double value) const;
  /// Round numbers within the range, about `count` of them: 1, 2 or 5 times a power of ten.
  std::vector<double> ticks(int count) const;
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double low_, high_, begin_, end_;
  bool logarithmic_;
};

/// The distance between ticks at round numbers, so that about `count` of them cover `range`.
double tick_step(double range, int count);

/// `value` as short as its neighbours at a distance of `step` allow: "0.25", "1,500", "20k", "1.5M". `largest` is the
/// largest value on the axis, which decides on the unit, so that all of an axis have the same.
std::string tick_label(double value, double step, double largest);

/// `value` with `digits` significant digits and no needless zeros.
std::string short_number(double value, int digits = 4);

}  // namespace lehr::metric
