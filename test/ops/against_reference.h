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

/// The instruction sets that this CPU supports, within LEHR_CPU.
std::vector<Arch> supported_archs();
std::vector<at::ScalarType> all_types();

at::Tensor random_tensor(at::IntArrayRef sizes, at::ScalarType type, double spread = 1);

/// The largest deviation, relative to the largest expected value.
double worst_error(const at::Tensor& actual, const at::Tensor& expected);

/// Rounding of the result, and of sums of some thousand terms before it: float64 1e-12 (the contract), float32 some ulp
/// of the largest value, bfloat16 two roundings (2^-8 each).
double tolerance(at::ScalarType type);

struct Outcome {
  Tensors values;
  Tensors gradients;  ///< Gradients of sum(value * weight) for fixed weights; undefined for frozen inputs.
};

Outcome run(const Operator& op, const Tensors& inputs, const std::vector<bool>& frozen, const Tensors& incoming);

/// Runs `fast` on the inputs and `definition` on the same numbers in float64. The results may differ by `tolerances`
/// times tolerance(type).
void expect_equal_to_definition(
    const std::string& what,
    const Operator& fast,
    const Operator& definition,
    const Tensors& inputs,
    std::vector<bool> frozen = {},
    double tolerances = 1);

/// Calls body(type, description) on every instruction set of this CPU and in every dtype.
template <class Body>
void everywhere(const Body& body) {
  for (const Arch arch : supported_archs()) {
    const ArchScope scope(arch);
    for (const at::ScalarType type : all_types()) {
      at::manual_seed(1);
      body(type, std::string(c10::toString(type)) + " on instruction set " + std::to_string(static_cast<int>(arch)));
    }
  }
}

/// The message of the usage error that `call` throws; empty if none.
std::string error_of(const std::function<void()>& call);

}  // namespace lehr::ops::test
