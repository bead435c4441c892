// Running statistics: numbers that grow by one value at a time, can be saved, and merge with those of other ranks.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace lehr::metric {

/// How the states of several ranks become one: element by element.
enum class Reduction { sum, max };

/// The mean of values, each with its weight: a loss over tokens, say.
class WeightedMean {
 public:
  static constexpr Reduction kReduction = Reduction::sum;

  void add(double value, double weight = 1.0);
  /// Not a number as long as the weights add up to 0.
  double value() const;
  double weight() const { return weight_; }
  void merge(const WeightedMean& other);
  void reset() { *this = {}; }
  /// {sum of weight * value, sum of weights}
  std::vector<double> state() const { return {weighted_sum_, weight_}; }
  /// Throws a usage error when `state` is not of this kind.
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

/// The largest value; minus infinity before the first. Once a value is not a number, so is the result.
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

/// A count: tokens trained, samples seen. Exact up to 2^53, also in state().
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
