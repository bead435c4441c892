// The kernels of the global norm and of scaling.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// On the CPU.
template <class T>
struct GlobalNormKernels {
  /// Returns the sum of squares, in float64.
  double (*sum_of_squares)(const T* x, int64_t size);
  void (*scale)(T* x, double factor, int64_t size);
};

namespace cuda {
/// Several tensors of one dtype, divided into pieces of kListPiece elements.
struct TensorList {
  static constexpr int64_t kMost = 64;
  void* data[kMost];
  int64_t count[kMost];        ///< Elements per tensor.
  int64_t first_piece[kMost];  ///< Number of pieces of all tensors before.
  int64_t tensors;
  int64_t pieces;  ///< Of all tensors.
};
constexpr int64_t kListPiece = 1 << 16;

/// On a GPU.
template <class T>
struct GlobalNormLaunches {
  static constexpr KernelId kId = {
      .name = "global_norm", .element = sizeof(T), .version = 1, .layout = sizeof(TensorList)};
  /// One sum in float64 per piece.
  Status (*sums_of_squares)(const TensorList& list, double* sums);
  /// `factor` is on the device.
  Status (*scale)(const TensorList& list, const double* factor);
};
/// The sum of the results of sums_of_squares, on a GPU.
struct SumLaunches {
  static constexpr KernelId kId = {.name = "sum", .element = 0, .version = 1};
  /// Sets total to the sum of `count` numbers, in an order that depends only on the count.
  Status (*sum)(const double* parts, int64_t count, double* total);
};
}  // namespace cuda

}  // namespace lehr::ops
