// Shared code of the tests of blocks: initialized modules, and comparison with a definition including the gradients of
// all parameters.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "lehr/nn/module.h"
#include "lehr/nn/rotary.h"

namespace lehr::nn::test {

/// The module with weights large enough that softmax and silu leave their linear range.
template <class Holder>
Holder made(Holder module, at::ScalarType dtype = at::kDouble) {
  materialize(*module, at::kCPU, dtype);
  module->reset_parameters({.seed = 11});
  for (const auto& [name, parameter] : named_parameters(*module)) {
    at::NoGradGuard no_grad;
    at::Tensor value = parameter->value();
    value.mul_(value.dim() > 1 ? 20 : 1);
  }
  return module;
}

/// The rotary angles of positions 0, 1, ...
inline PositionEmbeddings positions(int64_t tokens, int64_t head_dim, at::ScalarType dtype = at::kDouble) {
  return RotaryEmbeddingProvider(100.0, head_dim)(at::arange(tokens).unsqueeze(0), dtype);
}

/// The angles of tokens [first, first + count).
inline PositionEmbeddings part(const PositionEmbeddings& angles, int64_t first, int64_t count) {
  return {angles.first.narrow(1, first, count), angles.second.narrow(1, first, count)};
}

/// The largest deviation, relative to the largest expected value.
inline double worst_error(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor e = expected.detach().to(at::kDouble);
  const double difference = (actual.detach().to(at::kDouble) - e).abs().max().item<double>();
  return difference / std::max(e.abs().max().item<double>(), 1e-30);
}

/// Compares block(x) with definition(x): the values and the gradients of x and of all parameters, in float64. The
/// tolerance 1e-12 is the rounding of sums of some hundred terms.
inline void expect_equal_to_definition(
    const std::string& what,
    torch::nn::Module& module,
    const std::function<at::Tensor(const at::Tensor&)>& block,
    const std::function<at::Tensor(const at::Tensor&)>& definition,
    const at::Tensor& x) {
  const at::Tensor weights = at::randn_like(definition(x));
  const auto run = [&](const std::function<at::Tensor(const at::Tensor&)>& forward) {
    const at::Tensor input = x.detach().clone().set_requires_grad(true);
    const at::Tensor y = forward(input);
    (y * weights).sum().backward();
    std::vector<std::pair<std::string, at::Tensor>> results = {{"output", y}, {"input", input.grad()}};
    for (const auto& [name, parameter] : named_parameters(module)) {
      at::Tensor value = parameter->value();
      results.emplace_back(name, value.grad().clone());
      value.mutable_grad().reset();
    }
    return results;
  };
  const auto expected = run(definition);
  const auto actual = run(block);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(worst_error(actual[i].second, expected[i].second), 1e-12) << what << ", " << expected[i].first;
  }
}

}  // namespace lehr::nn::test
