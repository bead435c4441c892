// SwiGLU's gate on a GPU.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/silu_mul/kernels.h"

namespace lehr::ops::cuda {

/// Processes one tile; all pointers are aligned to 16 bytes if `packed`.
template <class T>
struct SiluMulForward {
  const T* gate;
  const T* up;
  T* y;
  int64_t count;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    Values<width> g[kPacksATile];
    Values<width> v[kPacksATile];
#pragma unroll
    for (int u = 0; u < kPacksATile; ++u) {
      g[u] = read_any<width>(gate, in_tile<T>(group, index, u), count, packed);
      v[u] = read_any<width>(up, in_tile<T>(group, index, u), count, packed);
    }
#pragma unroll
    for (int u = 0; u < kPacksATile; ++u) {
#pragma unroll
      for (int j = 0; j < width; ++j) {
        v[u].at[j] *= g[u].at[j] / (exponential(-g[u].at[j]) + 1);
      }
      write_any(y, in_tile<T>(group, index, u), count, packed, v[u]);
    }
  }
};

/// With s = sigmoid(gate): silu'(gate) = s (1 + gate (1 - s)).
template <class T>
struct SiluMulBackward {
  const T* dy;
  const T* gate;
  const T* up;
  T* dgate;  ///< Null if not requested, like dup.
  T* dup;
  int64_t count;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    Values<width> d[kPacksATile];
    Values<width> g[kPacksATile];
    Values<width> v[kPacksATile];
#pragma unroll
    for (int u = 0; u < kPacksATile; ++u) {
      const int64_t i = in_tile<T>(group, index, u);
      d[u] = read_any<width>(dy, i, count, packed);
      g[u] = read_any<width>(gate, i, count, packed);
      v[u] = read_any<width>(up, i, count, packed);
    }
#pragma unroll
    for (int u = 0; u < kPacksATile; ++u) {
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const float s = 1 / (exponential(-g[u].at[j]) + 1);
        const float silu = g[u].at[j] * s;
        v[u].at[j] *= d[u].at[j] * (s * (g[u].at[j] * (1 - s) + 1));
        d[u].at[j] *= silu;
      }
      const int64_t i = in_tile<T>(group, index, u);
      if (dgate != nullptr) {
        write_any(dgate, i, count, packed, v[u]);
      }
      if (dup != nullptr) {
        write_any(dup, i, count, packed, d[u]);
      }
    }
  }
};

namespace {
template <class T>
Status silu_mul_forward(const T* gate, const T* up, T* y, int64_t count) {
  return Launch::blocks(SiluMulForward<T>{gate, up, y, count, aligned(gate, up, y)}, tiles_for<T>(count), kTileThreads);
}

template <class T>
Status silu_mul_backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t count) {
  return Launch::blocks(
      SiluMulBackward<T>{dy, gate, up, dgate, dup, count, aligned(dy, gate, up, dgate, dup)},
      tiles_for<T>(count),
      kTileThreads);
}

template <class T>
constexpr SiluMulLaunches<T> kSiluMul = {.forward = silu_mul_forward<T>, .backward = silu_mul_backward<T>};
const Registered kSiluMulEntries(kSiluMul<float>, kSiluMul<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda
