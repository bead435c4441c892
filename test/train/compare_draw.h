// A drawn run and the run on one device, compared; and the line about it from which docs/composition.md is made.
#pragma once

#include "test/train/draw.h"

namespace lehr::train::testing {

/// The bound of differences, relative to the value on one device, or to the largest element of a tensor: 1e-9; 1e-8 for
/// Gemma 4, which does not divide scores by the root of head_dim. So its softmax is sharper, and gradients differ by
/// five times as much in rounding, which Adam divides by elements of any size, and Muon by any singular value.
double bound_of(const std::string& family);

/// Steps of a drawn run: two in which the learning rate rises, and three in which it falls.
inline constexpr int64_t kStepsOfDraw = 5;

/// How a drawn run ended.
struct Comparison {
  std::string refused;               ///< The error of a run that was refused. Empty: it ran.
  bool refused_early = true;         ///< Before memory was allocated; and it was a usage error.
  double largest = 0;                ///< The largest difference. Infinite for other shapes or missing values.
  std::string where;                 ///< The curve or tensor that has it.
  std::vector<std::string> differs;  ///< The first 20 differences above the bound, curves first.
  double seconds = 0;

  bool equal() const { return refused.empty() && differs.empty(); }
};

/// LEHR_TEST_SEED, or 0.
uint64_t seed_of_draws();

/// The draw with that number, of every family that the tests train.
Draw draw_number(uint64_t seed, int64_t number);

/// Runs it on its mesh and on one device.
Comparison compare_with_one_device(const Draw& draw);

/// Expects of a refused run that its reason is on the list and that it has the features of the reason; of any other
/// that it equals one device.
void expect_equal_or_refused(const Draw& draw, const Comparison& found);

/// Appends a JSON line about a draw to the file that LEHR_COMPOSITION names, if it does.
void record(uint64_t seed, int64_t number, const Draw& draw, const Comparison& found);

}  // namespace lehr::train::testing
