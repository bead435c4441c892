// The kernels of the loss of logits.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// On the CPU.
template <class T>
struct CrossEntropyKernels {
  /// Returns -log softmax(logits)[label]. If gradient_scale is not null, overwrites logits by the loss's gradient times
  /// *gradient_scale.
  Wide<T> (*row)(T* logits, int64_t size, int64_t label, const Wide<T>* gradient_scale);
};

namespace cuda {
/// Losses and gradients of rows of logits.
template <class T>
struct CrossEntropyCall {
  T* logits;              ///< (rows, size); replaced by the gradient if requested.
  const int64_t* labels;  ///< -1: ignored, with loss and gradient zero. Other labels that are out of range give NaN.
  float* losses;
  const float* row_scale;  ///< Factors of the rows' gradients; null for 1.
  int64_t size;
  bool gradient;
};

/// On a GPU.
template <class T>
struct CrossEntropyLaunches {
  static constexpr KernelId kId = {
      .name = "cross_entropy", .element = sizeof(T), .version = 1, .layout = sizeof(CrossEntropyCall<T>)};
  Status (*rows)(const CrossEntropyCall<T>& call, int64_t rows);
};
}  // namespace cuda

}  // namespace lehr::ops
