// The kernels of the causal convolution on the CPU and on a GPU.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"
#include "lehr/ops/rms_norm/kernels.h"

namespace lehr::ops {

/// The largest number of channels of a job of backward, whose sums stay in the level-1 cache.
constexpr int64_t kConvBlock = 128;

/// x and y are (tokens, channels), the tokens of all rows one after the other.
template <class T>
struct ConvCall {
  const T* x;
  const T* before;         ///< (rows, width - 1, channels): the tokens before each row; null if no token sees them.
  const Wide<T>* weight;   ///< (width, channels); the last row is that of the token itself.
  const Wide<T>* bias;     ///< (channels); null for zero.
  const int32_t* earlier;  ///< (tokens) tokens before it that it sees, at most width - 1.
  int64_t tokens, row_tokens, channels, width;
};

/// On the CPU; T is float, double or Bf16.
template <class T>
struct ConvKernels {
  /// Computes y of tokens [first, last).
  void (*forward)(const ConvCall<T>& call, T* y, int64_t first, int64_t last);
  /// Computes the gradients of channels [first, last), at most kConvBlock of them, in the order of tokens. dx may be
  /// null; dweight (width, channels) and dbias (channels) too. Adds to dbefore, unless it is null.
  void (*backward)(
      const ConvCall<T>& call,
      const T* dy,
      T* dx,
      Wide<T>* dbefore,
      Wide<T>* dweight,
      Wide<T>* dbias,
      int64_t first,
      int64_t last);
};

namespace cuda {

/// Tokens of a row that a block processes; each block of tokens has a part of the gradient of weight.
constexpr int64_t kConvTokens = 128;

/// x is (rows, row_tokens, channels).
template <class T>
struct ConvInput {
  const T* x;
  const T* before;                    ///< (rows, width - 1, channels): the tokens before each row; null for zeros.
  const T* weight;                    ///< (channels, width); the last column is that of the token itself.
  const T* bias;                      ///< (channels); null for zero.
  const int32_t* cumulative_lengths;  ///< Those of the sequences of all rows; null if each row is one sequence.
  int64_t borders;                    ///< Number of cumulative lengths.
  int64_t rows, row_tokens, channels, width;

  /// Blocks of tokens of a row.
  constexpr int64_t token_blocks() const { return (row_tokens + kConvTokens - 1) / kConvTokens; }
};

}  // namespace cuda

/// On a GPU.
template <class T>
struct ConvLaunches {
  static constexpr cuda::KernelId kId = {
      .name = "causal_conv", .element = sizeof(T), .version = 2, .layout = sizeof(cuda::ConvInput<T>)};
  cuda::Status (*forward)(const cuda::ConvInput<T>& input, T* y);
  /// dx and dbefore may be null. `dweight` has rows * token_blocks() parts (null if not requested) of `weight_size`
  /// elements, a multiple of 4: the channels * width elements of weight, the channels of bias if there is one, and
  /// padding. Its sum has as many.
  cuda::Status (*backward)(
      const cuda::ConvInput<T>& input,
      const T* dy,
      T* dx,
      T* dbefore,
      const cuda::WeightGradient<T>& dweight,
      int64_t weight_size);
};

}  // namespace lehr::ops
