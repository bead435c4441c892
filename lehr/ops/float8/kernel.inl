// Rounding to float8_e4m3fn with one power-of-two scale per row or column. ops/float8/float8.h has the definition.
#pragma once

#include "lehr/ops/float8/kernels.h"
#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

struct Float8Scale {
  float scale;    // factor before rounding
  float inverse;  // factor after rounding; NaN if amax is not finite, since float8_e4m3fn has no infinity
};

// Returns the largest power of two that keeps amax within 448 = 1.75 * 2^8, computed from the bits of amax = 1.m *
// 2^(e - 127).
LEHR_INLINE Float8Scale float8_scale(float amax) {
  constexpr float kLeast = 1e-12f;
  const uint32_t bits = bit_cast<uint32_t>(amax > kLeast ? amax : kLeast);
  if (!(amax < __builtin_inff())) {
    return {1, __builtin_nanf("")};
  }
  const uint32_t exponent = 262 - (bits >> 23) - ((bits & 0x7fffff) > 0x600000 ? 1 : 0);
  return {bit_cast<float>(exponent << 23), bit_cast<float>((254 - exponent) << 23)};
}

// Rounds to three mantissa bits, or to a multiple of 2^-9 below 2^-6 (subnormal); to nearest even. |v| <= 448, up to
// the rounding of float64.
LEHR_INLINE FloatVec to_e4m3(const FloatVec& v) {
  const UintVec bits = bit_cast<UintVec>(v);
  const FloatVec normal = bit_cast<FloatVec>((bits + 0x7ffff + ((bits >> 20) & 1)) & 0xfff00000);
  constexpr float kUnits = 24576;  // 1.5 * 2^14: the last bit of v + kUnits is 2^-9
  const FloatVec tiny = (v + kUnits) - kUnits;
  return maximum(v, -v) < 0.015625f ? tiny : normal;
}
LEHR_INLINE float to_e4m3(float v) {
  return to_e4m3(splat(v))[0];
}

// Returns the larger absolute value, as bits: NaN compares above infinity.
LEHR_INLINE UintVec larger_size(const UintVec& sizes, const FloatVec& v) {
  const UintVec size = bit_cast<UintVec>(v) & 0x7fffffff;
  return size > sizes ? size : sizes;
}
LEHR_INLINE uint32_t larger_size(uint32_t sizes, float v) {
  const uint32_t size = bit_cast<uint32_t>(v) & 0x7fffffff;
  return size > sizes ? size : sizes;
}

template <class T>
void float8_rows(const Float8Call<T>& call, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* x = call.x + row * call.columns;
    T* y = call.y + row * call.columns;
    uint32_t size = 0;
    if constexpr (sizeof(Wide<T>) == sizeof(float)) {
      UintVec sizes{};
      for_each_vector<T>(
          call.columns, [&](int64_t i, auto count) __attribute__((always_inline)) {
            sizes = larger_size(sizes, load(x + i, count));
          });
      for (int64_t lane = 0; lane < kLanes<T>; ++lane) {
        size = sizes[lane] > size ? sizes[lane] : size;
      }
      const Float8Scale by = float8_scale(bit_cast<float>(size));
      for_each_vector<T>(
          call.columns, [&](int64_t i, auto count) __attribute__((always_inline)) {
            store(y + i, to_e4m3(load(x + i, count) * by.scale) * by.inverse, count);
          });
    } else {
      for (int64_t i = 0; i < call.columns; ++i) {
        size = larger_size(size, static_cast<float>(x[i]));
      }
      const Float8Scale by = float8_scale(bit_cast<float>(size));
      for (int64_t i = 0; i < call.columns; ++i) {
        y[i] = static_cast<T>(to_e4m3(static_cast<float>(x[i] * by.scale))) * by.inverse;
      }
    }
  }
}

// Per block of columns: all rows are read twice (amax, then rounding), the second time from cache.
template <class T>
void float8_columns(const Float8Call<T>& call, int64_t first, int64_t last) {
  for (int64_t block = first; block < last; ++block) {
    const int64_t begin = block * kFloat8Columns;
    const int64_t width = call.columns - begin < kFloat8Columns ? call.columns - begin : kFloat8Columns;
    uint32_t sizes[kFloat8Columns] = {};
    float scales[kFloat8Columns];
    float inverses[kFloat8Columns];
    for (int64_t row = 0; row < call.rows; ++row) {
      const T* x = call.x + row * call.columns + begin;
      if constexpr (sizeof(Wide<T>) == sizeof(float)) {
        for_each_vector<T>(
            width, [&](int64_t i, auto count) __attribute__((always_inline)) {
              write(sizes + i, larger_size(read<UintVec>(sizes + i, count), load(x + i, count)), count);
            });
      } else {
        for (int64_t i = 0; i < width; ++i) {
          sizes[i] = larger_size(sizes[i], static_cast<float>(x[i]));
        }
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      const Float8Scale by = float8_scale(bit_cast<float>(sizes[i]));
      scales[i] = by.scale;
      inverses[i] = by.inverse;
    }
    for (int64_t row = 0; row < call.rows; ++row) {
      const T* x = call.x + row * call.columns + begin;
      T* y = call.y + row * call.columns + begin;
      if constexpr (sizeof(Wide<T>) == sizeof(float)) {
        for_each_vector<T>(
            width, [&](int64_t i, auto count) __attribute__((always_inline)) {
              store(y + i, to_e4m3(load(x + i, count) * load(scales + i, count)) * load(inverses + i, count), count);
            });
      } else {
        for (int64_t i = 0; i < width; ++i) {
          y[i] = static_cast<T>(to_e4m3(static_cast<float>(x[i] * scales[i]))) * inverses[i];
        }
      }
    }
  }
}

template <class T>
constexpr Float8Kernels<T> kFloat8 = {.rows = float8_rows<T>, .columns = float8_columns<T>};

}  // namespace

LEHR_KERNELS(kFloat8<float>)
LEHR_KERNELS(kFloat8<double>)
LEHR_KERNELS(kFloat8<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
