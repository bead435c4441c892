// Rotary embedding (https://arxiv.org/abs/2104.09864), one head at a time, alone and after RMSNorm. Forward maps a pair
// (a, b) to (a cos - b sin, b cos + a sin). Backward is the transposed map: it rotates by the negative angle and, in
// the half style, uses the sine of the pair's other element.
#pragma once

#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/rms_norm/kernel.inl"
#include "lehr/ops/rotary/kernels.h"

namespace lehr::ops::LEHR_ARCH {
namespace {

// A size that is known at compile time: loops over a head of that size are unrolled and stay in registers.
template <int64_t count>
struct Known {
  constexpr operator int64_t() const { return count; }
};

// Calls body(size, rotated, zero_centered) for normalized heads, with common sizes as compile-time constants.
template <class T, class Body>
LEHR_INLINE void with_heads_of(int64_t size, bool zero_centered, const RotaryAngles<T>& angles, const Body& body) {
  const bool whole = angles.rotated == size && !angles.interleaved;
  choose(
      zero_centered, [&](auto centered) __attribute__((always_inline)) {
        if (whole && size == 128) {
          body(Known<128>{}, Known<128>{}, centered);
        } else if (whole && size == 64) {
          body(Known<64>{}, Known<64>{}, centered);
        } else {
          body(size, angles.rotated, centered);
        }
      });
}

// Rotates the first `rotated` of `size` elements of a head, and copies the others.
template <class T, class In, class Out, class Rotated, class Size>
LEHR_INLINE void rotate_head(
    const In* x,
    Out* y,
    const Wide<T>* cos,
    const Wide<T>* sin,
    Rotated rotated,
    Size size,
    bool interleaved,
    bool backward) {
  const int64_t half = rotated / 2;
  if (interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const Wide<T> a = load_one(x + 2 * i), b = load_one(x + 2 * i + 1);
      const Wide<T> s = backward ? -sin[i] : sin[i];
      store_one(y + 2 * i, a * cos[i] - b * s);
      store_one(y + 2 * i + 1, b * cos[i] + a * s);
    }
  } else if (!backward) {
    for_each_vector<T>(
        half, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const Vec<T> a = load(x + i, count), b = load(x + half + i, count);
          store(y + i, a * load(cos + i, count) - b * load(sin + i, count), count);
          store(y + half + i, b * load(cos + half + i, count) + a * load(sin + half + i, count), count);
        });
  } else {
    for_each_vector<T>(
        half, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const Vec<T> a = load(x + i, count), b = load(x + half + i, count);
          store(y + i, a * load(cos + i, count) + b * load(sin + half + i, count), count);
          store(y + half + i, b * load(cos + half + i, count) - a * load(sin + i, count), count);
        });
  }
  for_each_vector<T>(
      size - rotated, [&](int64_t i, auto count) __attribute__((always_inline)) {
        store(y + rotated + i, load(x + rotated + i, count), count);
      });
}

template <class T>
void rotary(const RotaryCall<T>& call, int64_t first, int64_t last) {
  const RotaryAngles<T>& angles = call.angles;
  for (int64_t token = first; token < last; ++token) {
    const int64_t angle = (token % angles.angle_rows) * angles.rotated;
    for (int64_t head = token * call.heads; head < (token + 1) * call.heads; ++head) {
      rotate_head<T>(
          call.x + head * call.size,
          call.y + head * call.size,
          angles.cos + angle,
          angles.sin + angle,
          angles.rotated,
          call.size,
          angles.interleaved,
          call.backward);
    }
  }
}

template <class T>
void norm_rotary_forward(const NormRotaryForward<T>& call, int64_t first, int64_t last) {
  const RmsNormForward<T>& norm = call.norm;
  const RotaryAngles<T>& angles = call.angles;
  const auto visit = [&](auto size, auto rotated, auto zero_centered) __attribute__((always_inline)) {
    alignas(64) Wide<T> scaled[kMaxFusedHeadSize];  // the normalized head, not rounded to T
    for (int64_t token = first; token < last; ++token) {
      const int64_t angle = (token % angles.angle_rows) * angles.rotated;
      for (int64_t head = token * call.heads; head < (token + 1) * call.heads; ++head) {
        const T* x = norm.x + head * size;
        const Wide<T> inverse_rms = inverse_rms_of(x, size, norm.eps);
        if (norm.inverse_rms != nullptr) {
          norm.inverse_rms[head] = inverse_rms;
        }
        for_each_vector<T>(
            size, [&](int64_t i, auto count) __attribute__((always_inline)) {
              const Vec<T> factor = norm_factor(norm.weight + i, zero_centered, count);
              store(scaled + i, load(x + i, count) * inverse_rms * factor, count);
            });
        rotate_head<T>(
            scaled,
            norm.y + head * size,
            angles.cos + angle,
            angles.sin + angle,
            rotated,
            size,
            angles.interleaved,
            false);
      }
    }
  };
  with_heads_of(norm.size, norm.zero_centered, angles, visit);
}

template <class T>
void norm_rotary_backward(const NormRotaryBackward<T>& call, Wide<T>* dweight, int64_t first, int64_t last) {
  const RmsNormBackward<T>& norm = call.norm;
  const RotaryAngles<T>& angles = call.angles;
  const auto visit = [&](auto size, auto rotated, auto zero_centered) __attribute__((always_inline)) {
    alignas(64) Wide<T> unrotated[kMaxFusedHeadSize];  // gradient of the normalized head
    for (int64_t token = first; token < last; ++token) {
      const int64_t angle = (token % angles.angle_rows) * angles.rotated;
      for (int64_t head = token * call.heads; head < (token + 1) * call.heads; ++head) {
        const int64_t at = head * size;
        rotate_head<T>(
            norm.dy + at,
            unrotated,
            angles.cos + angle,
            angles.sin + angle,
            rotated,
            size,
            angles.interleaved,
            true);
        rms_norm_backward_row(
            unrotated,
            norm.x + at,
            norm.weight,
            zero_centered,
            norm.inverse_rms[head],
            norm.dx ? norm.dx + at : nullptr,
            dweight,
            size);
      }
    }
  };
  with_heads_of(norm.size, norm.zero_centered, angles, visit);
}

template <class T>
constexpr RotaryKernels<T> kRotary = {.rotary = rotary<T>, .norm_forward = norm_rotary_forward<T>, .norm_backward = norm_rotary_backward<T>};

}  // namespace

LEHR_KERNELS(kRotary<float>)
LEHR_KERNELS(kRotary<double>)
LEHR_KERNELS(kRotary<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
