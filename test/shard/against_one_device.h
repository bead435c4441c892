// Shared code of the tests of parallel styles: ranks as threads, and comparison with one device.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <string>

#include "lehr/base/error.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/nn/module.h"
#include "lehr/shard/ownership.h"
#include "test/shard/one_device.h"

namespace lehr::shard::test {

/// Equal to 1e-11 of the largest expected value: float64 sums of some hundred terms in another order.
inline void expect_equal(const std::string& what, const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) {
    return;
  }
  const double difference = (actual.detach() - expected.detach()).abs().max().item<double>();
  EXPECT_LE(difference, 1e-11 * expected.detach().abs().max().clamp_min(1e-3).item<double>()) << what;
}

/// Allocates and initializes in float64, with weights large enough that softmax and silu leave their linear range.
inline void fill(torch::nn::Module& module) {
  nn::materialize(module, at::kCPU, at::kDouble);
  dynamic_cast<nn::ModuleLateInit&>(module).reset_parameters({.seed = 7});
}

using Gradients = std::map<std::string, at::Tensor>;

/// The gradients of all trained parameters of a module on one device.
inline Gradients gradients_of(torch::nn::Module& module) {
  Gradients gradients;
  for (const auto& [name, parameter] : nn::named_parameters(module)) {
    if (parameter->trainable()) {
      gradients[name] = parameter->value().grad();
    }
  }
  return gradients;
}

/// Lays out the dimensions that the styles left open, as the last style does.
inline void replicate_the_rest(torch::nn::Module& module, mesh::DistributedContext& context) {
  for (const auto& [name, parameter] : nn::named_parameters(module)) {
    replicate_elsewhere(*parameter, context);
  }
}

/// Compares the gradients of this rank's boxes, summed over the axes on which they are partial, with those of one
/// device.
inline void expect_gradients(
    torch::nn::Module& module, mesh::DistributedContext& context, const Gradients& expected, const std::string& what) {
  for (const auto& [name, parameter] : nn::named_parameters(module)) {
    if (!parameter->trainable()) {
      continue;
    }
    const std::string subject = what + ", rank " + std::to_string(context.rank()) + ", " + name;
    ASSERT_TRUE(parameter->value().grad().defined()) << subject;
    at::Tensor sum = parameter->value().grad().clone(at::MemoryFormat::Contiguous);
    for (const std::string& axis : parameter->layout().axes_of(Placement::Kind::replicate)) {
      context.group(axis).all_reduce(sum);
    }
    expect_equal(subject, sum, narrow_to(expected.at(name), parameter->box()));
  }
}

}  // namespace lehr::shard::test
