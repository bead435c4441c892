// The kernels of rotary embedding, alone and after a norm of heads.
#pragma once

#include "lehr/ops/rms_norm/kernels.h"

namespace lehr::ops {

/// The cosines and sines of the rotation angles. Token t uses row t % angle_rows.
template <class T>
struct RotaryAngles {
  const Wide<T>* cos;  ///< (angle_rows, rotated)
  const Wide<T>* sin;
  int64_t angle_rows;
  int64_t rotated;
  bool interleaved;
};

/// Rotary embedding of (tokens, heads, size).
template <class T>
struct RotaryCall {
  const T* x;
  T* y;
  RotaryAngles<T> angles;
  int64_t heads;
  int64_t size;
  bool backward;  ///< Rotates by the negative angles (the transposed map).
};

/// QK-norm with rotation: RMSNorm of each head of (tokens, heads, norm.size), and its rotation.
template <class T>
struct NormRotaryForward {
  RmsNormForward<T> norm;
  RotaryAngles<T> angles;
  int64_t heads;
};

/// Its backward.
template <class T>
struct NormRotaryBackward {
  RmsNormBackward<T> norm;
  RotaryAngles<T> angles;
  int64_t heads;
};

/// The largest head size that norm_forward and norm_backward support.
constexpr int64_t kMaxFusedHeadSize = 1024;

/// On the CPU, for tokens [first, last).
template <class T>
struct RotaryKernels {
  void (*rotary)(const RotaryCall<T>& call, int64_t first, int64_t last);
  void (*norm_forward)(const NormRotaryForward<T>& call, int64_t first, int64_t last);
  void (*norm_backward)(const NormRotaryBackward<T>& call, Wide<T>* dweight, int64_t first, int64_t last);
};

namespace cuda {
/// On a GPU, for heads for which fits_rotation is true, and with a norm of at most kMostInHead elements. Pointers are
/// aligned to 16 bytes.
template <class T>
struct RotaryLaunches {
  static constexpr KernelId kId = {
      .name = "rotary",
      .element = sizeof(T),
      .version = 1,
      .layout = sizeof(RotaryCall<T>) + 3 * sizeof(NormRotaryForward<T>) + 5 * sizeof(NormRotaryBackward<T>)};
  Status (*rotary)(const RotaryCall<T>& call, int64_t tokens);
  Status (*norm_forward)(const NormRotaryForward<T>& call, int64_t tokens);
  Status (*norm_backward)(const NormRotaryBackward<T>& call, const WeightGradient<T>& dweight, int64_t tokens);
};

/// The longest head, whose group is part of one warp.
constexpr int64_t kMostInHead = 512;
/// The number of 16-byte packs of pairs of elements of a head that a thread holds in registers.
template <class T>
constexpr int kKeptPairPacks = 8 / kPack<T>;
template <class T>
constexpr int64_t head_threads(int64_t size) {
  return threads_for(size / 2 / kPack<T>, kKeptPairPacks<T>);
}
/// True if the kernels of rotations support heads of `size`, of which `rotated` elements are rotated.
template <class T>
constexpr bool fits_rotation(int64_t size, int64_t rotated) {
  return size > 0 && size % (2 * kPack<T>) == 0 && rotated % (2 * kPack<T>) == 0;
}
}  // namespace cuda

}  // namespace lehr::ops
