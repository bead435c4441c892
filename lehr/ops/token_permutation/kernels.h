// The kernels of copies of tokens.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// Copies of tokens, sorted by expert: choice c of token n is row inverse[n * choices + c] of `sorted`.
template <class T>
struct TokenCopies {
  const T* sorted;   ///< (tokens * choices, size)
  const T* weights;  ///< (tokens, choices); null for ones.
  const int64_t* inverse;
  int64_t choices, size;
};

/// On the CPU, for tokens [first, last).
template <class T>
struct TokenCopyKernels {
  /// Writes the weighted sum of each token's rows to out (tokens, size).
  void (*sum)(const TokenCopies<T>& call, T* out, int64_t first, int64_t last);
  /// Writes the gradients of the rows and of the weights, either of which may be null. call.weights must not be null.
  void (*sum_backward)(const TokenCopies<T>& call, const T* dout, T* dsorted, T* dweights, int64_t first, int64_t last);
};

namespace cuda {
/// On a GPU.
template <class T>
struct TokenCopyLaunches {
  static constexpr KernelId kId = {
      .name = "token_permutation", .element = sizeof(T), .version = 1, .layout = sizeof(TokenCopies<T>)};
  /// copies[inverse[i]] = tokens[i / choices], rows of `size`, for `count` tokens.
  Status (*copy)(const T* tokens, const int64_t* inverse, T* copies, int64_t count, int64_t choices, int64_t size);
  /// out (tokens, size): the weighted sum of each token's copies, in the order of its choices.
  Status (*sum)(const TokenCopies<T>& call, T* out, int64_t tokens);
  /// Gradients of `sum`; dsorted or dweights may be null.
  Status (*sum_backward)(const TokenCopies<T>& call, const T* dout, T* dsorted, T* dweights, int64_t tokens);
};
}  // namespace cuda

}  // namespace lehr::ops
