// gpt-oss's gate on a GPU.
#include "lehr/ops/clamped_swiglu/kernels.h"
#include "lehr/ops/cuda/kernel.h"

namespace lehr::ops::cuda {

/// The clamped gate g, the clamped other half u, and s = sigmoid(alpha g), of one pair. NaN stays NaN in both halves.
struct ClampedPair {
  float gate, up, sigmoid;

  LEHR_HOST_DEVICE ClampedPair(float given_gate, float given_up, float limit, float alpha)
      : gate(given_gate > limit ? limit : given_gate),
        up(given_up > limit ? limit : (given_up < -limit ? -limit : given_up)),
        sigmoid(1 / (exponential(-alpha * gate) + 1)) {}
};

/// Processes one tile; all pointers are aligned to 16 bytes if `packed`.
template <class T>
struct ClampedSwiGLUForward {
  const T* gate_up;
  T* y;
  float limit, alpha;
  int64_t count;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    Values<2 * width> pairs[kPacksATile];
#pragma unroll
    for (int u = 0; u < kPacksATile; ++u) {
      pairs[u] = read_any<2 * width>(gate_up, 2 * in_tile<T>(group, index, u), 2 * count, packed);
    }
#pragma unroll
    for (int u = 0; u < kPacksATile; ++u) {
      Values<width> values;
#pragma unroll
      for (int j = 0; j < width; ++j) {
        const ClampedPair pair(pairs[u].at[2 * j], pairs[u].at[2 * j + 1], limit, alpha);
        values.at[j] = (pair.up + 1) * (pair.gate * pair.sigmoid);
      }
      write_any(y, in_tile<T>(group, index, u), count, packed, values);
    }
  }
};

/// The derivative of g s is s (1 + alpha g (1 - s)); a half beyond the limit has no gradient.
template <class T>
struct ClampedSwiGLUBackward {
  const T* dy;
  const T* gate_up;
  T* dgate_up;
  float limit, alpha;
  int64_t count;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    Values<width> d[kPacksATile];
    Values<2 * width> pairs[kPacksATile];
#pragma unroll
    for (int u = 0; u < kPacksATile; ++u) {
      const int64_t i = in_tile<T>(group, index, u);
      d[u] = read_any<width>(dy, i, count, packed);
      pairs[u] = read_any<2 * width>(gate_up, 2 * i, 2 * count, packed);
    }
#pragma unroll
    for (int u = 0; u < kPacksATile; ++u) {
#pragma unroll
      for (int j = 0; j < width; ++j) {
        float& gate = pairs[u].at[2 * j];
        float& up = pairs[u].at[2 * j + 1];
        const ClampedPair pair(gate, up, limit, alpha);
        const float s = pair.sigmoid;
        gate = gate <= limit ? d[u].at[j] * (pair.up + 1) * (s * (alpha * pair.gate * (1 - s) + 1)) : 0;
        up = up == pair.up ? d[u].at[j] * (pair.gate * s) : 0;
      }
      write_any(dgate_up, 2 * in_tile<T>(group, index, u), 2 * count, packed, pairs[u]);
    }
  }
};

namespace {
template <class T>
Status clamped_swiglu_forward(const T* gate_up, T* y, double limit, double alpha, int64_t count) {
  return Launch::blocks(
      ClampedSwiGLUForward<T>{
          gate_up, y, static_cast<float>(limit), static_cast<float>(alpha), count, aligned(gate_up, y)},
      tiles_for<T>(count),
      kTileThreads);
}

template <class T>
Status clamped_swiglu_backward(const T* dy, const T* gate_up, T* dgate_up, double limit, double alpha, int64_t count) {
  return Launch::blocks(
      ClampedSwiGLUBackward<T>{
          dy,
          gate_up,
          dgate_up,
          static_cast<float>(limit),
          static_cast<float>(alpha),
          count,
          aligned(dy, gate_up, dgate_up)},
      tiles_for<T>(count),
      kTileThreads);
}

template <class T>
constexpr ClampedSwiGLULaunches<T> kClampedSwiGLU = {
    .forward = clamped_swiglu_forward<T>, .backward = clamped_swiglu_backward<T>};
const Registered kClampedSwiGLUEntries(kClampedSwiGLU<float>, kClampedSwiGLU<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda
