// The kernels of RMSNorm, and the parts that they share with the kernels of a norm of heads.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// RMSNorm of rows of `size` elements.
template <class T>
struct RmsNormForward {
  const T* x;
  const T* branch;  ///< Added to x before the norm; null for none.
  T* sum;           ///< Gets x + branch, rounded to T, which is normalized; null without a branch.
  const T* weight;
  T* y;
  Wide<T>* inverse_rms;  ///< One per row; null if no backward follows.
  int64_t size;
  double eps;
  bool zero_centered;  ///< The factor is 1 + weight, and the normalized value is not rounded before it.
};

/// Backward of RMSNorm, for rows of `size` elements.
template <class T>
struct RmsNormBackward {
  const T* dy;
  const T* x;
  const T* weight;
  const Wide<T>* inverse_rms;
  const T* dsum;  ///< Gradient of x from its other readers, which dx includes; null for none.
  T* dx;          ///< Null if not needed.
  int64_t size;
  bool zero_centered;
};

/// On the CPU, for rows [first, last).
template <class T>
struct RmsNormKernels {
  void (*forward)(const RmsNormForward<T>& call, int64_t first, int64_t last);
  /// Adds the rows' gradient of weight to dweight (size) unless that is null.
  void (*backward)(const RmsNormBackward<T>& call, Wide<T>* dweight, int64_t first, int64_t last);
};

namespace cuda {
/// Buffers for the gradient of the weight of rows: groups of threads sum into a row each, and a second kernel adds
/// these rows in order. The number of groups depends only on the shape (weight_gradient_parts), so the result does too.
template <class T>
struct WeightGradient {
  float* parts;   ///< (count, size); null if not requested.
  int64_t count;  ///< At most the number of rows.
  T* sum;         ///< (size)
};

/// On a GPU, for rows of at most kMostInRow elements, in 16-byte packs (fits_row). Their number may be zero. Pointers
/// are aligned to 16 bytes; those that are not needed are null.
template <class T>
struct RmsNormLaunches {
  static constexpr KernelId kId = {
      .name = "rms_norm",
      .element = sizeof(T),
      .version = 1,
      .layout = sizeof(RmsNormForward<T>) + 3 * sizeof(RmsNormBackward<T>) + 5 * sizeof(WeightGradient<T>)};
  Status (*forward)(const RmsNormForward<T>& call, int64_t rows);
  Status (*backward)(const RmsNormBackward<T>& call, const WeightGradient<T>& dweight, int64_t rows);
};

/// The number of 16-byte packs of a row that a thread holds in registers.
template <class T>
constexpr int kKeptPacks = 16 / kPack<T>;
template <class T>
constexpr int64_t row_threads(int64_t size) {
  return threads_for(size / kPack<T>, kKeptPacks<T>);
}
/// The longest row that a group of threads can hold.
constexpr int64_t kMostInRow = 8192;
/// True if the kernels of norms support rows of `size`.
template <class T>
constexpr bool fits_row(int64_t size) {
  return size > 0 && size <= kMostInRow && size % kPack<T> == 0;
}
/// Returns the number of groups of `threads` that share `rows` in the backward pass of a norm: 512 threads for each of
/// 132 multiprocessors, whatever the number of the device.
constexpr int64_t weight_gradient_parts(int64_t rows, int64_t threads) {
  const int64_t most = 132 * 512 / threads;
  return rows < most ? rows : most;
}
}  // namespace cuda

}  // namespace lehr::ops
