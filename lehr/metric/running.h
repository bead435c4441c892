// Running statistics: updated one value at a time, can be saved, and merged over ranks.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace lehr::metric {

/// The element-wise reduction that merges the states of several ranks.
enum class Reduction { sum, max };

/// The weighted mean of values, such as a loss over tokens.
class WeightedMean {
 public:
  static constexpr Reduction kReduction = Reduction::sum;

  void add(double value, double weight = 1.0);
  /// Returns the mean; NaN while the weights sum to 0.
  double value() const;
  double weight() const { return weight_; }
  void merge(const WeightedMean& other);
  void reset() { *this = {}; }
  /// Returns {sum of weight * value, sum of weights}.
  std::vector<double> state() const { return {weighted_sum_, weight_}; }
  /// Throws a usage error if `state` is not of this kind.
  void load_state(const std::vector<double>& state);

 private:
  double weighted_sum_ = 0;
  double weight_ = 0;
};

/// The sum of values.
class RunningSum {
 public:
  static constexpr Reduction kReduction = Reduction::sum;

  void add(double value) { sum_ += value; }
  double value() const { return sum_; }
  void merge(const RunningSum& other) { sum_ += other.sum_; }
  void reset() { *this = {}; }
  std::vector<double> state() const { return {sum_}; }
  void load_state(const std::vector<double>& state);

 private:
  double sum_ = 0;
};

/// The largest value; minus infinity before the first one, and NaN after any NaN.
class RunningMax {
 public:
  static constexpr Reduction kReduction = Reduction::max;

  void add(double value);
  double value() const { return max_; }
  void merge(const RunningMax& other) { add(other.max_); }
  void reset() { *this = {}; }
  std::vector<double> state() const { return {max_}; }
  void load_state(const std::vector<double>& state);

 private:
  double max_ = -std::numeric_limits<double>::infinity();
};

/// A count, such as tokens trained or sequences seen. Exact up to 2^53, also in state().
class RunningCount {
 public:
  static constexpr Reduction kReduction = Reduction::sum;

  void add(int64_t count = 1) { count_ += count; }
  int64_t value() const { return count_; }
  void merge(const RunningCount& other) { count_ += other.count_; }
  void reset() { *this = {}; }
  std::vector<double> state() const { return {static_cast<double>(count_)}; }
  void load_state(const std::vector<double>& state);

 private:
  int64_t count_ = 0;
};

}  // namespace lehr::metric
