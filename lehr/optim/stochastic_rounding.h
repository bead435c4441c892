// Stochastic rounding: a float32 is rounded to the bfloat16 below or above it, with probabilities such that the
// expectation is preserved. So updates below half a unit in the last place accumulate instead of vanishing.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/ops/stochastic_rounding/kernels.h"
#include "lehr/optim/optimizer.h"

namespace lehr::optim {

using ops::RoundingNoise;

/// Returns the noise of one tensor at one step of a run. It is a function of the arguments and the element's index in
/// the whole parameter, so it is the same on every mesh and after a resume.
RoundingNoise rounding_noise(uint64_t seed, int64_t step, std::string_view tensor);

/// Returns the noise of Triton's tl.randint(seed, index), which other implementations of stochastic rounding use.
RoundingNoise raw_rounding_noise(uint64_t seed);

/// target = source, rounded: adds 16 random bits to the bits of source as float32, and keeps the upper 16. Finite
/// values stay finite; infinities and NaN are unchanged. `target` is bfloat16, `source` float32 of the same shape and
/// device, both contiguous; otherwise throws a usage error.
void copy_stochastically_(
    const at::Tensor& target, const at::Tensor& source, const RoundingNoise& noise, const ShardSpan& placement = {});

/// The same in plain ATen operators, on any device.
void copy_stochastically_reference_(
    const at::Tensor& target, const at::Tensor& source, const RoundingNoise& noise, const ShardSpan& placement = {});

/// The tensors of AdamW on bfloat16 parameters. Contiguous, of one shape and device.
struct StochasticAdamWTensors {
  at::Tensor value = {};       ///< bfloat16
  at::Tensor grad = {};        ///< float32 or bfloat16
  at::Tensor exp_avg = {};     ///< float32 or bfloat16
  at::Tensor exp_avg_sq = {};  ///< as exp_avg
  ShardSpan placement = {};
};

/// Hyperparameters of a step, and its number.
struct StochasticAdamWNumbers {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  int64_t step = 1;         ///< Counted from 1, this one included.
  double grad_divisor = 1;  ///< Divisor of the gradients.
};

/// The noise of each tensor; that of the moments is used if they are bfloat16.
struct StochasticAdamWNoise {
  RoundingNoise value = {};
  RoundingNoise exp_avg = {};
  RoundingNoise exp_avg_sq = {};
};

/// One step of AdamW in float32 that rounds bfloat16 results stochastically, in one pass. Throws a usage error for
/// tensors that do not match.
void stochastic_adamw_(
    const StochasticAdamWTensors& tensors, const StochasticAdamWNumbers& numbers, const StochasticAdamWNoise& noise);

/// One parameter's part of a step.
struct StochasticAdamWStep {
  StochasticAdamWTensors tensors = {};
  StochasticAdamWNumbers numbers = {};
  StochasticAdamWNoise noise = {};
};

/// Numbers of a step that the device knows before the host. One element each; tensors on a GPU read them there, and the
/// host does not wait.
struct StochasticAdamWOnDevice {
  at::Tensor grad_divisor =
      {};                     ///< Divisor of the gradients besides StochasticAdamWNumbers::grad_divisor. Undefined: 1.
  at::Tensor found_inf = {};  ///< If it is not 0, nothing is written. Undefined: 0.
};

/// The same for many parameters, with the same bits; on a GPU with one launch per 16 consecutive parameters whose
/// hyperparameters are equal.
void stochastic_adamw_(const std::vector<StochasticAdamWStep>& steps, const StochasticAdamWOnDevice& on_device = {});

/// The same in plain ATen operators, on any device; its float32 arithmetic may differ in the last bit.
void stochastic_adamw_reference_(
    const StochasticAdamWTensors& tensors,
    const StochasticAdamWNumbers& numbers,
    const StochasticAdamWNoise& noise,
    const StochasticAdamWOnDevice& on_device = {});

}  // namespace lehr::optim
