// The kernels of stochastic rounding, alone and in AdamW.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// Random bits of stochastic rounding: 16 per element, a function of its index in the tensor only. They are those of
/// Philox4x32-10 with the key `seed` and a counter whose upper half is `stream`.
struct RoundingNoise {
  uint64_t seed;
  uint64_t stream;
  /// False: eight elements share a block (see noise_of in optim/stochastic_rounding_ref.cpp). True: element i has block
  /// i and takes the low half of its first word, as Triton's tl.randint(seed, i).
  bool block_an_element;
};

/// Number of elements whose noise is generated together; the unit of the ranges below.
constexpr int64_t kNoiseGroup = 128;

/// The elements of a shard: element 0 has index `first` in the whole parameter.
struct RoundingRange {
  int64_t first;
  int64_t count;
};

/// AdamW on bfloat16 values with moments of type T (float or Bf16) and float32 arithmetic.
template <class T>
struct StochasticAdamWCall {
  Bf16* value;
  const float* grad;      ///< Null if the gradients are bfloat16.
  const Bf16* grad_bf16;  ///< Null if they are float32.
  T* exp_avg;
  T* exp_avg_sq;
  RoundingRange range;
  RoundingNoise value_noise, exp_avg_noise, exp_avg_sq_noise;  ///< The latter two for bfloat16 moments only.
  float grad_factor;                                           ///< Factor of the gradients (clipping).
  float decay;                                                 ///< 1 - lr * weight_decay
  float beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step_size;    ///< lr / (1 - beta1^t)
  float root_factor;  ///< 1 / sqrt(1 - beta2^t)
  float eps;
};

/// On the CPU, for the elements whose index in the whole parameter, divided by kNoiseGroup, is in [first, last).
struct StochasticRoundKernels {
  void (*round)(
      const float* x, Bf16* y, const RoundingRange& range, const RoundingNoise& noise, int64_t first, int64_t last);
};
/// T is float or Bf16.
template <class T>
struct StochasticAdamWKernels {
  void (*adamw)(const StochasticAdamWCall<T>& call, int64_t first, int64_t last);
};

namespace cuda {
/// A tensor's elements as runs of equal length that are contiguous in the whole parameter too.
struct RoundingRuns {
  static constexpr int64_t kMostDims = 6;
  int64_t count;            ///< Elements per run.
  int64_t runs;             ///< Number of runs.
  int64_t first;            ///< Index of the first run's first element in the whole parameter.
  int64_t dims;             ///< Dimensions, slowest first: run r has index (r / stride of sizes) % size in each.
  int64_t size[kMostDims];  ///< Number of runs along a dimension.
  int64_t step[kMostDims];  ///< Distance of the runs in the whole parameter.
};

/// Several tensors that one launch updates by a step of AdamW (StochasticAdamWCall), all with gradients of one dtype.
/// The numbers that depend on the tensor's own step count are stored per tensor. Smaller than 4 KB, which every GPU
/// accepts as a launch's arguments.
template <class T>
struct StochasticAdamWList {
  static constexpr int64_t kMost = 16;
  struct One {
    Bf16* value;
    const void* grad;
    T* exp_avg;
    T* exp_avg_sq;
    uint64_t value_stream, exp_avg_stream, exp_avg_sq_stream;  ///< Streams of the noise; the seed is shared.
    float step_size;
    float root_factor;
    RoundingRuns runs;
    int64_t first_group;  ///< Number of groups of all tensors before; see groups_of.
  };
  One of[kMost];
  int64_t tensors;
  int64_t groups;  ///< Of all tensors.
  uint64_t seed;
  bool wide_grads;          ///< float, else Bf16.
  const float* grad_scale;  ///< On the device: a factor of the gradients besides grad_factor. Null: 1.
  const float* found_inf;   ///< On the device: if it is not 0, nothing is written. Null: 0.
  float grad_factor, decay, beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
};

/// Returns the most groups of 128 elements that a run touches.
constexpr int64_t groups_a_run(int64_t count) {
  return (count + kNoiseGroup - 1) / kNoiseGroup + 1;
}
/// Returns the number of groups of all runs of a tensor.
constexpr int64_t groups_of(const RoundingRuns& runs) {
  return runs.runs * groups_a_run(runs.count);
}

/// On a GPU; neither supports noise with block_an_element.
struct StochasticRoundLaunches {
  static constexpr KernelId kId = {
      .name = "stochastic_round",
      .element = 0,
      .version = 1,
      .layout = sizeof(RoundingNoise) + 3 * sizeof(RoundingRuns)};
  Status (*round)(const float* x, Bf16* y, const RoundingNoise& noise, const RoundingRuns& runs);
};
/// Moments of type T.
template <class T>
struct StochasticAdamWLaunches {
  static constexpr KernelId kId = {
      .name = "stochastic_adamw", .element = sizeof(T), .version = 1, .layout = sizeof(StochasticAdamWList<T>)};
  Status (*adamw)(const StochasticAdamWList<T>& list);
};
}  // namespace cuda

}  // namespace lehr::ops
