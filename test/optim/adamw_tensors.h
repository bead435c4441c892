// Inputs of the tests of AdamW's kernels.
#pragma once

#include "lehr/optim/adamw_cpu.h"

namespace lehr::optim::testing_support {

inline AdamWTensors random_tensors(int64_t size, at::ScalarType type, double step = 3) {
  return {
      .value = at::randn({size}).to(type),
      .grad = at::randn({size}).to(type),
      .exp_avg = (at::randn({size}) * 0.1).to(type),
      .exp_avg_sq = (at::rand({size}) * 0.01).to(type),
      .step = step};
}

}  // namespace lehr::optim::testing_support
