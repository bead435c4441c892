// Updates and restores running statistics.
#include "lehr/metric/running.h"

#include <cmath>

#include "lehr/base/error.h"

namespace lehr::metric {
namespace {

void check_state(const char* what, const std::vector<double>& state, size_t size) {
  require(
      state.size() == size,
      "{}: its saved state has {} numbers, expected {}; another metric saved it",
      what,
      state.size(),
      size);
}

}  // namespace

void WeightedMean::add(double value, double weight) {
  if (weight != 0) {  // a value of weight 0 may be NaN
    weighted_sum_ += value * weight;
    weight_ += weight;
  }
}

double WeightedMean::value() const {
  return weight_ == 0 ? std::numeric_limits<double>::quiet_NaN() : weighted_sum_ / weight_;
}

void WeightedMean::merge(const WeightedMean& other) {
  weighted_sum_ += other.weighted_sum_;
  weight_ += other.weight_;
}

void WeightedMean::load_state(const std::vector<double>& state) {
  check_state("weighted mean", state, 2);
  weighted_sum_ = state[0];
  weight_ = state[1];
}

void RunningSum::load_state(const std::vector<double>& state) {
  check_state("sum", state, 1);
  sum_ = state[0];
}

void RunningMax::add(double value) {
  if (value > max_ || std::isnan(value)) {
    max_ = value;
  }
}

void RunningMax::load_state(const std::vector<double>& state) {
  check_state("maximum", state, 1);
  max_ = state[0];
}

void RunningCount::load_state(const std::vector<double>& state) {
  check_state("count", state, 1);
  constexpr double kLargestExact = 9007199254740992.0;  // 2^53
  require(
      std::abs(state[0]) <= kLargestExact && std::floor(state[0]) == state[0],
      "count: its saved state is {}, expected a whole number",
      state[0]);
  count_ = static_cast<int64_t>(state[0]);
}

}  // namespace lehr::metric
