// Compares a fast operator with its definition: values and gradients, in every dtype and on every instruction set.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops::test {

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<Tensors(const Tensors&)>;

inline std::vector<Arch> all_archs() {
  return {Arch::generic, Arch::avx2, Arch::avx512, Arch::avx512_bf16, Arch::amx};
}
inline std::vector<at::ScalarType> all_types() {
  return {at::kFloat, at::kDouble, at::kBFloat16};
}

inline at::Tensor random_tensor(at::IntArrayRef sizes, at::ScalarType type, double spread = 1) {
  return (at::randn(sizes, at::kDouble) * spread).to(type);
}

/// The largest deviation, relative to the largest expected value.
inline double worst_error(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) {
    return std::numeric_limits<double>::infinity();
  }
  if (expected.numel() == 0) {
    return 0;
  }
  const at::Tensor e = expected.detach().to(at::kDouble);
  const double difference = (actual.detach().to(at::kDouble) - e).abs().max().item<double>();
  return difference / std::max(e.abs().max().item<double>(), 1e-30);
}

/// Rounding of the result, and of sums of some thousand terms before it: float64 1e-12 (the contract), float32 some ulp
/// of the largest value, bfloat16 two roundings (2^-8 each).
inline double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 4e-6 : 1.0 / 128;
}

struct Outcome {
  Tensors values;
  Tensors gradients;  ///< Gradients of sum(value * weight) for fixed weights; undefined for frozen inputs.
};

inline Outcome run(
    const Operator& op, const Tensors& inputs, const std::vector<bool>& frozen, const Tensors& incoming) {
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].detach());
    leaves.back().set_requires_grad(!frozen[i]);
  }
  Outcome outcome{.values = op(leaves), .gradients = {}};
  at::Tensor total = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < outcome.values.size(); ++i) {
    total = total + (outcome.values[i].to(at::kDouble) * incoming[i]).sum();
  }
  if (total.requires_grad()) {
    total.backward();
  }
  for (const at::Tensor& leaf : leaves) {
    outcome.gradients.push_back(leaf.grad());
  }
  return outcome;
}

/// Runs `fast` on the inputs and `definition` on the same numbers in float64. The results may differ by `tolerances`
/// times tolerance(type).
inline void expect_equal_to_definition(
    const std::string& what,
    const Operator& fast,
    const Operator& definition,
    const Tensors& inputs,
    std::vector<bool> frozen = {},
    double tolerances = 1) {
  frozen.resize(inputs.size());
  const at::ScalarType type = inputs[0].scalar_type();
  const double allowed = tolerances * tolerance(type);
  Tensors wide;
  for (const at::Tensor& input : inputs) {
    wide.push_back(input.to(at::kDouble));
  }
  Tensors incoming;
  {
    at::NoGradGuard no_grad;
    for (const at::Tensor& value : definition(wide)) {
      incoming.push_back(at::randn(value.sizes(), at::kDouble).to(type).to(at::kDouble));
    }
  }
  const Outcome expected = run(definition, wide, frozen, incoming);
  const Outcome actual = run(fast, inputs, frozen, incoming);
  ASSERT_EQ(actual.values.size(), expected.values.size()) << what;
  for (size_t i = 0; i < actual.values.size(); ++i) {
    EXPECT_LE(worst_error(actual.values[i], expected.values[i]), allowed) << what << ", value " << i;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(actual.gradients[i].defined(), !frozen[i]) << what << ", gradient " << i;
    if (!frozen[i]) {
      EXPECT_EQ(actual.gradients[i].scalar_type(), type) << what << ", gradient " << i;
      EXPECT_LE(worst_error(actual.gradients[i], expected.gradients[i]), allowed) << what << ", gradient " << i;
    }
  }
  at::NoGradGuard no_grad;
  const Tensors without_gradients = fast(inputs);
  for (size_t i = 0; i < without_gradients.size(); ++i) {
    EXPECT_LE(worst_error(without_gradients[i], actual.values[i]), allowed) << what << " without gradients";
  }
}

/// Calls body(type, description) on every instruction set of this CPU and in every dtype.
template <class Body>
void everywhere(const Body& body) {
  for (const Arch arch : all_archs()) {
    const ArchScope scope(arch);
    if (current_arch() != arch) {
      continue;
    }
    for (const at::ScalarType type : all_types()) {
      at::manual_seed(1);
      body(type, std::string(c10::toString(type)) + " on instruction set " + std::to_string(static_cast<int>(arch)));
    }
  }
}

/// The message of the usage error that `call` throws; empty if none.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace lehr::ops::test
