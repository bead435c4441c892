// Checkpoints of blocks with several inputs and outputs.
#include "lehr/nn/activation_checkpoint.h"

#include <gtest/gtest.h>

namespace lehr::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor leaf(bool requires_grad = true) {
  return at::randn({3, 4}, at::kDouble).set_requires_grad(requires_grad);
}

// The second output does not depend on the first input, the third is a number of another shape.
Tensors block(const Tensors& x, const at::Tensor& weight) {
  return {x[0] * x[1].sin() + weight, x[1] * x[2] * weight, x[0].sum()};
}

TEST(ActivationCheckpoint, OfSeveralTensorsHasTheGradientsOfTheBlock) {
  at::manual_seed(1);
  const Tensors inputs{leaf(), leaf(), leaf(/*requires_grad=*/false)};
  const at::Tensor weight = leaf();
  const auto gradients = [&](const Tensors& outputs, const std::vector<int>& read) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const int output : read) {
      sum = sum + (outputs[static_cast<size_t>(output)] * (output + 2)).sum();
    }
    sum.backward();
    Tensors found;
    for (const at::Tensor& tensor : {inputs[0], inputs[1], weight}) {
      found.push_back(tensor.grad().defined() ? tensor.grad().clone() : at::zeros_like(tensor));
      tensor.mutable_grad().reset();
    }
    return found;
  };
  for (const std::vector<int>& read : {std::vector{0, 1, 2}, {0}, {1}, {2, 1}}) {
    const Tensors wanted = gradients(block(inputs, weight), read);
    const Tensors outputs = checkpoint([&](const Tensors& x) { return block(x, weight); }, inputs);
    ASSERT_EQ(outputs.size(), 3U);
    const Tensors found = gradients(outputs, read);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], wanted[i])) << "tensor " << i << ", first output read " << read.front();
    }
  }
  EXPECT_FALSE(inputs[2].grad().defined());
}

}  // namespace
}  // namespace lehr::nn
