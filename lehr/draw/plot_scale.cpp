// Scales, ticks and labels of drawings.
#include "lehr/draw/plot_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lehr::draw {
namespace {

std::string without_trailing_zeros(std::string text) {
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') {
      text.pop_back();
    }
  }
  return text == "-0" ? "0" : text;
}

std::string with_thousands(std::string digits) {
  const size_t sign = digits.starts_with('-') ? 1 : 0;
  size_t at = std::min(digits.find('.'), digits.size());
  while (at > sign + 3) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

}  // namespace

AxisScale::AxisScale(double low, double high, double begin, double end, bool logarithmic)
    : low_(low), high_(high), begin_(begin), end_(end), logarithmic_(logarithmic) {}

double AxisScale::operator()(double value) const {
  const auto place = [this](double v) { return logarithmic_ ? std::log10(v) : v; };
  return begin_ + (end_ - begin_) * (place(value) - place(low_)) / (place(high_) - place(low_));
}

std::vector<double> AxisScale::ticks(int count) const {
  std::vector<double> found;
  if (logarithmic_) {
    const int first = static_cast<int>(std::floor(std::log10(low_)));
    const int last = static_cast<int>(std::ceil(std::log10(high_)));
    const bool wide = last - first > 3;
    for (int exponent = first; exponent <= last; exponent += std::max(1, (last - first) / count)) {
      for (const double digit : wide ? std::vector{1.0} : std::vector{1.0, 2.0, 5.0}) {
        const double tick = digit * std::pow(10.0, exponent);
        if (tick >= low_ * (1 - 1e-9) && tick <= high_ * (1 + 1e-9)) {
          found.push_back(tick);
        }
      }
    }
    if (found.size() >= 2) {
      return found;
    }
    found.clear();  // less than a decade: ticks as on a linear axis
  }
  const double step = tick_step(high_ - low_, count);
  const double first = std::ceil(low_ / step - 1e-9);
  if (!(step > 0) || !(std::abs(first) < 1e15)) {
    return found;  // a range of a few bits, in which a next tick would be the same number
  }
  for (double index = first; index * step <= high_ + step * 1e-9; ++index) {
    found.push_back(index * step);
  }
  return found;
}

double tick_step(double range, int count) {
  const double rough = range / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power * 1.2 >= rough) {
      return digit * power;
    }
  }
  return 10 * power;
}

std::string tick_label(double value, double step, double largest) {
  if (value == 0) {
    return "0";
  }
  struct Unit {
    double size;
    const char* name;
  };
  for (const Unit unit : {Unit{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}}) {
    const double size = unit.size == 1e4 ? 1e3 : unit.size;
    if (largest >= unit.size) {
      const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step / size) - 1e-9)));
      return without_trailing_zeros(fmt::format("{:.{}f}", value / size, std::min(decimals, 6))) + unit.name;
    }
  }
  if (std::abs(value) < 1e-4) {
    return fmt::format("{:.2g}", value);
  }
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  std::string text = fmt::format("{:.{}f}", value, std::min(decimals, 9));
  if (text.find_first_not_of("-0.") == std::string::npos) {
    text = "0";
  }
  return with_thousands(text);
}

std::string short_number(double value, int digits) {
  return fmt::format("{:.{}g}", value, digits);
}

}  // namespace lehr::draw
