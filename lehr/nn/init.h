// What a parameter is filled with before training.
#pragma once

#include <cstdint>
#include <string_view>

#include "lehr/base/box.h"
#include "lehr/base/torch.h"

namespace lehr::nn {

/// A distribution of initial values. Values depend on the seed, the parameter's full name and the index of the element
/// in the whole parameter alone, so every mesh and every data type starts from the same numbers.
struct Init {
  enum class Kind { constant, normal, truncated_normal, uniform };
  Kind kind = Kind::constant;
  double a = 0;  ///< The constant; the mean; the lower bound.
  double b = 0;  ///< Unused; the standard deviation; the upper bound.

  static Init zeros() { return {}; }
  static Init ones() { return {.kind = Kind::constant, .a = 1, .b = 0}; }
  static Init normal(double std, double mean = 0) { return {.kind = Kind::normal, .a = mean, .b = std}; }
  /// Normal, cut at two standard deviations on either side.
  static Init truncated_normal(double std) { return {.kind = Kind::truncated_normal, .a = 0, .b = std}; }
  static Init uniform(double low, double high) { return {.kind = Kind::uniform, .a = low, .b = high}; }
};

/// Where initial values come from.
struct InitContext {
  uint64_t seed = 0;
  std::string_view prefix = "";  ///< Put before every parameter's name, as "model.".
};

/// Fills `tensor` (contiguous, any floating type and device) with elements first_element.. of parameter `full_name`.
void fill(at::Tensor& tensor, const Init& init, uint64_t seed, std::string_view full_name, int64_t first_element = 0);

/// As above, for the tensor that is `box` of a parameter of that shape: its elements are those of the whole.
void fill(
    at::Tensor& tensor,
    const Init& init,
    uint64_t seed,
    std::string_view full_name,
    const Box& box,
    const std::vector<int64_t>& shape);

}  // namespace lehr::nn
