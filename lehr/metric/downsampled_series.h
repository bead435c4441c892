// A series of any length in bounded memory, for plots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lehr::metric {

/// The values of one metric by step, downsampled to means over equally many neighbours: when `capacity` points are
/// held, each pair of neighbours becomes one point, so a run of a million steps takes as much memory as one of a
/// thousand.
class DownsampledSeries {
 public:
  /// `capacity` is an even number of points, at least 2.
  explicit DownsampledSeries(size_t capacity = 2048) : capacity_(capacity) {}

  /// Appends a value. One that is not finite is counted, and has no part in a mean.
  void add(int64_t step, double value);
  void clear() { *this = DownsampledSeries(capacity_); }

  bool empty() const { return points_.empty(); }
  /// Number of values that were not finite.
  int64_t not_finite() const { return not_finite_; }
  /// The mean step of each point.
  std::vector<double> steps() const;
  /// The mean value of each point.
  std::vector<double> values() const;

 private:
  struct Point {
    double steps = 0;  // sums
    double values = 0;
    int64_t count = 0;
  };
  size_t capacity_;
  std::vector<Point> points_ = {};
  int64_t stride_ = 1;  // values per point; the last point may have fewer
  int64_t not_finite_ = 0;
};

}  // namespace lehr::metric
