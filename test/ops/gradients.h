// Gradients of leaves, for comparison in tests.
#pragma once

#include <vector>

#include "lehr/base/torch.h"

namespace lehr::ops::test {

using Tensors = std::vector<at::Tensor>;

/// Takes the gradients of the leaves, which are undefined afterwards.
inline Tensors take_gradients(const Tensors& leaves) {
  Tensors gradients;
  for (at::Tensor leaf : leaves) {
    gradients.push_back(leaf.grad());
    leaf.mutable_grad().reset();
  }
  return gradients;
}

}  // namespace lehr::ops::test
