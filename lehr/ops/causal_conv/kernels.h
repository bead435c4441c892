// The kernels of the causal convolution on the CPU.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// The largest number of channels of a job of backward, whose sums stay in the level-1 cache.
constexpr int64_t kConvBlock = 128;

/// x and y are (tokens, channels), the tokens of all rows one after the other.
template <class T>
struct ConvCall {
  const T* x;
  const T* before;         ///< (rows, width - 1, channels): the tokens before each row; null if no token sees them.
  const Wide<T>* weight;   ///< (width, channels); the last row is that of the token itself.
  const int32_t* earlier;  ///< (tokens) tokens before it that it sees, at most width - 1.
  int64_t tokens, row_tokens, channels, width;
};

template <class T>
struct ConvKernels {
  /// Computes y of tokens [first, last).
  void (*forward)(const ConvCall<T>& call, T* y, int64_t first, int64_t last);
  /// Computes the gradients of channels [first, last), at most kConvBlock of them, in the order of tokens. dx may be
  /// null; dweight (width, channels) too. Adds to dbefore, unless it is null.
  void (*backward)(
      const ConvCall<T>& call, const T* dy, T* dx, Wide<T>* dbefore, Wide<T>* dweight, int64_t first, int64_t last);
};

}  // namespace lehr::ops
