// Shared code of the tests of optimizers: inputs, and access to state and errors.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "lehr/optim/optimizer.h"
#include "test/base/error_of.h"

namespace lehr::optim::testing_support {

using lehr::error_of;

constexpr int64_t kSize = 37;  // more than two vectors of any width, plus a remainder
// Exact in every dtype, bfloat16 included.
inline double value_at(int64_t i) {
  return static_cast<double>(i - 18) / 8;
}
inline double grad_at(int64_t i, int64_t t) {
  return static_cast<double>((i * 7 + t * 5) % 11 - 5) / 16;
}

inline at::Tensor values(at::ScalarType dtype) {
  auto tensor = at::empty({kSize}, at::kDouble);
  for (int64_t i = 0; i < kSize; ++i) {
    tensor.data_ptr<double>()[i] = value_at(i);
  }
  return tensor.to(dtype);
}

inline at::Tensor grads(int64_t t, at::ScalarType dtype) {
  auto tensor = at::empty({kSize}, at::kDouble);
  for (int64_t i = 0; i < kSize; ++i) {
    tensor.data_ptr<double>()[i] = grad_at(i, t);
  }
  return tensor.to(dtype);
}

inline at::Tensor entry(const Optimizer& optimizer, const std::string& name) {
  for (const auto& [key, tensor] : optimizer.state()) {
    if (key == name) {
      return tensor;
    }
  }
  throw std::out_of_range(name);
}

/// Compares elements 0, 1, 17, 19, 31, 32 and 36 with the results of another implementation.
inline void expect_elements(
    const at::Tensor& found, const std::vector<double>& expected, double relative, const char* what) {
  const std::vector<int64_t> elements = {0, 1, 17, 19, 31, 32, 36};
  for (size_t i = 0; i < elements.size(); ++i) {
    EXPECT_NEAR(found[elements[i]].item<double>(), expected[i], std::abs(expected[i]) * relative)
        << what << " of element " << elements[i];
  }
}

/// Copies of all state tensors.
inline std::map<std::string, at::Tensor> saved_state(const Optimizer& optimizer) {
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, tensor] : optimizer.state()) {
    saved[name] = tensor.clone();
  }
  return saved;
}

}  // namespace lehr::optim::testing_support
