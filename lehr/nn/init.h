// Initialization of parameters.
#pragma once

#include <cstdint>
#include <string_view>

#include "lehr/base/box.h"
#include "lehr/base/torch.h"

namespace lehr::nn {

/// A distribution of initial values. Values depend only on the seed, the parameter's full name and the index of the
/// element in the whole parameter, so every mesh and every dtype starts from the same numbers.
struct Init {
  enum class Kind { constant, normal, truncated_normal, uniform, log_uniform, time_step };
  Kind kind = Kind::constant;
  double a = 0;  ///< The constant; the mean; the lower bound.
  double b = 0;  ///< Unused; the standard deviation; the upper bound.

  static Init zeros() { return {}; }
  static Init ones() { return {.kind = Kind::constant, .a = 1, .b = 0}; }
  static Init normal(double std, double mean = 0) { return {.kind = Kind::normal, .a = mean, .b = std}; }
  /// Normal, truncated at two standard deviations on both sides.
  static Init truncated_normal(double std) { return {.kind = Kind::truncated_normal, .a = 0, .b = std}; }
  static Init uniform(double low, double high) { return {.kind = Kind::uniform, .a = low, .b = high}; }
  /// The logarithm of a uniform number.
  static Init log_uniform(double low, double high) { return {.kind = Kind::log_uniform, .a = low, .b = high}; }
  /// A number whose softplus is uniform on a logarithmic scale: the bias of Mamba's time steps.
  static Init time_step(double low, double high) { return {.kind = Kind::time_step, .a = low, .b = high}; }
};

/// The source of initial values.
struct InitContext {
  uint64_t seed = 0;
  std::string_view prefix = "";  ///< Prepended to every parameter's name, such as "model.".
};

/// Fills `tensor` (contiguous, any floating-point dtype and device) with the elements of parameter `full_name` from
/// `first_element` on.
void fill(at::Tensor& tensor, const Init& init, uint64_t seed, std::string_view full_name, int64_t first_element = 0);

/// The same for a tensor that is the region `box` of a parameter of this shape: its elements equal those of the whole.
void fill(
    at::Tensor& tensor,
    const Init& init,
    uint64_t seed,
    std::string_view full_name,
    const Box& box,
    const std::vector<int64_t>& shape);

}  // namespace lehr::nn
