#include "lehr/metric/downsampled_series.h"

#include <cmath>

namespace lehr::metric {

void DownsampledSeries::add(int64_t step, double value) {
  if (!std::isfinite(value)) {
    ++not_finite_;
    return;
  }
  if (points_.empty() || points_.back().count == stride_) {
    if (points_.size() == capacity_) {
      for (size_t i = 0; 2 * i < capacity_; ++i) {
        const Point &left = points_[2 * i], &right = points_[2 * i + 1];
        points_[i] = {left.steps + right.steps, left.values + right.values, left.count + right.count};
      }
      points_.resize(capacity_ / 2);
      stride_ *= 2;
    }
    points_.emplace_back();
  }
  Point& last = points_.back();
  last.steps += static_cast<double>(step);
  last.values += value;
  ++last.count;
}

std::vector<double> DownsampledSeries::steps() const {
  std::vector<double> means;
  for (const Point& point : points_) {
    means.push_back(point.steps / static_cast<double>(point.count));
  }
  return means;
}

std::vector<double> DownsampledSeries::values() const {
  std::vector<double> means;
  for (const Point& point : points_) {
    means.push_back(point.values / static_cast<double>(point.count));
  }
  return means;
}

}  // namespace lehr::metric
