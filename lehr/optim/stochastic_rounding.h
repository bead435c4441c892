// Stochastic rounding: a float32 becomes the bfloat16 below or above it, each with the probability that keeps the
// expectation. So updates that are smaller than half a unit in the last place add up instead of vanishing.
#pragma once

#include <cstdint>
#include <string_view>

#include "lehr/base/torch.h"
#include "lehr/ops/kernels/table.h"
#include "lehr/optim/optimizer.h"

namespace lehr::optim {

using ops::RoundingNoise;

/// The noise of one tensor at one step of a run: a function of its arguments and the element's index in the whole
/// parameter, so that neither a mesh nor a resume changes it.
RoundingNoise rounding_noise(uint64_t seed, int64_t step, std::string_view tensor);

/// The noise of Triton's tl.randint(seed, index): that of other systems' stochastic rounding.
RoundingNoise raw_rounding_noise(uint64_t seed);

/// target = source, rounded: the bits of source as float32 plus 16 random bits, cut to the upper 16. What is finite
/// stays finite; infinities and NaN stay what they are. `target` is bfloat16, `source` float32 of the same shape and
/// device, both contiguous; a usage error says what else was found.
void copy_stochastically_(
    const at::Tensor& target, const at::Tensor& source, const RoundingNoise& noise, const Placement& placement = {});

/// The same, plainly in ATen, on any device.
void copy_stochastically_reference_(
    const at::Tensor& target, const at::Tensor& source, const RoundingNoise& noise, const Placement& placement = {});

/// What AdamW on bfloat16 parameters works on. Contiguous, of one shape and device.
struct StochasticAdamWTensors {
  at::Tensor value = {};       ///< bfloat16
  at::Tensor grad = {};        ///< float32 or bfloat16
  at::Tensor exp_avg = {};     ///< float32 or bfloat16
  at::Tensor exp_avg_sq = {};  ///< as exp_avg
  Placement placement = {};
};

struct StochasticAdamWNumbers {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t step = 1;         ///< Counted from 1, this one included.
  double grad_divisor = 1;  ///< What gradients are divided by before use.
};

/// The moments' are used where the moments are bfloat16.
struct StochasticAdamWNoise {
  RoundingNoise value = {};
  RoundingNoise exp_avg = {};
  RoundingNoise exp_avg_sq = {};
};

/// One step of AdamW in float32 that rounds what it stores as bfloat16 stochastically, in one pass. Throws a usage
/// error for tensors that do not fit together.
void stochastic_adamw_(
    const StochasticAdamWTensors& tensors, const StochasticAdamWNumbers& numbers, const StochasticAdamWNoise& noise);

/// The same, plainly in ATen, on any device; its float32 arithmetic may differ in the last bit.
void stochastic_adamw_reference_(
    const StochasticAdamWTensors& tensors, const StochasticAdamWNumbers& numbers, const StochasticAdamWNoise& noise);

}  // namespace lehr::optim
