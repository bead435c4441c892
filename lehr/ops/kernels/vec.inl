// Vectors of LEHR_VECTOR_BYTES bytes, written with the vector extensions of GCC and Clang, so that one source serves
// all instruction sets. bfloat16 is computed in float32: load widens, store rounds to nearest even. The exception is
// multiply_add of bfloat16 pairs, below.
#pragma once

#include "lehr/ops/kernels/slot.h"

#define LEHR_INLINE inline __attribute__((always_inline))

// Defines an operator's kernels for this instruction set. AVX512-BF16 has only those of LEHR_PAIR_KERNELS, for structs
// whose kHasPairs is true; it takes the others of AVX-512. AMX has those that files amx.inl define.
#define LEHR_DEFINE_KERNELS(...)         \
  template <>                            \
  decltype(__VA_ARGS__)& kernels_of() {  \
    return __VA_ARGS__;                  \
  }
#ifdef LEHR_PAIRS
#define LEHR_KERNELS(...)
#define LEHR_PAIR_KERNELS(...) LEHR_DEFINE_KERNELS(__VA_ARGS__)
#else
#define LEHR_KERNELS(...) LEHR_DEFINE_KERNELS(__VA_ARGS__)
#define LEHR_PAIR_KERNELS(...)
#endif

namespace lehr::ops::LEHR_ARCH {
namespace {

struct Yes {
  static constexpr bool value = true;
};
struct No {
  static constexpr bool value = false;
};

using FloatVec = float __attribute__((vector_size(LEHR_VECTOR_BYTES)));
using DoubleVec = double __attribute__((vector_size(LEHR_VECTOR_BYTES)));
using IntVec = int32_t __attribute__((vector_size(LEHR_VECTOR_BYTES)));
using UintVec = uint32_t __attribute__((vector_size(LEHR_VECTOR_BYTES)));
using LongVec = int64_t __attribute__((vector_size(LEHR_VECTOR_BYTES)));
using HalfBitsVec = uint16_t __attribute__((vector_size(LEHR_VECTOR_BYTES / 2)));

template <class A>
struct VecOf;
template <>
struct VecOf<float> {
  using type = FloatVec;
};
template <>
struct VecOf<double> {
  using type = DoubleVec;
};
/// The vector in which elements of type T are computed.
template <class T>
using Vec = typename VecOf<Wide<T>>::type;
template <class T>
constexpr int64_t kLanes = LEHR_VECTOR_BYTES / static_cast<int64_t>(sizeof(Wide<T>));

template <class To, class From>
LEHR_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// Number of elements of a load or store: all lanes, or the first few, for the end of a row. Missing lanes load as zero.
struct All {};
struct First {
  int64_t count;
};

template <class V, class T>
LEHR_INLINE V read(const T* p, All) {
  V v;
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}
template <class V, class T>
LEHR_INLINE V read(const T* p, First first) {
  V v{};
  for (int64_t i = 0; i < first.count; ++i) {
    __builtin_memcpy(reinterpret_cast<T*>(&v) + i, p + i, sizeof(T));
  }
  return v;
}
template <class V, class T>
LEHR_INLINE void write(T* p, const V& v, All) {
  __builtin_memcpy(p, &v, sizeof(V));
}
template <class V, class T>
LEHR_INLINE void write(T* p, const V& v, First first) {
  for (int64_t i = 0; i < first.count; ++i) {
    __builtin_memcpy(p + i, reinterpret_cast<const T*>(&v) + i, sizeof(T));
  }
}

// With 64 bytes, gcc would convert the two halves of a vector separately; hence the intrinsics. (It warns about those
// without a mask.)
LEHR_INLINE UintVec lanes_of(const HalfBitsVec& bits) {
#if LEHR_VECTOR_BYTES == 64
  return bit_cast<UintVec>(_mm512_maskz_cvtepu16_epi32(0xffff, bit_cast<__m256i>(bits)));
#else
  return __builtin_convertvector(bits, UintVec);
#endif
}
LEHR_INLINE HalfBitsVec lower_halves(const UintVec& lanes) {
#if LEHR_VECTOR_BYTES == 64
  return bit_cast<HalfBitsVec>(_mm512_maskz_cvtepi32_epi16(0xffff, bit_cast<__m512i>(lanes)));
#else
  return __builtin_convertvector(lanes, HalfBitsVec);
#endif
}

LEHR_INLINE FloatVec widen(const HalfBitsVec& bits) {
  return bit_cast<FloatVec>(lanes_of(bits) << 16);
}
// Rounds to nearest even; the bits of the bfloat16 are in the lower half of each lane. NaN stays a (quiet) NaN.
LEHR_INLINE UintVec narrow_bits(const FloatVec& v) {
  const UintVec bits = bit_cast<UintVec>(v);
  const UintVec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const UintVec quiet = (bits >> 16) | 0x40;
  return (v == v) ? rounded : quiet;
}
// With AVX512-BF16, subnormal numbers become zero, as they do in its products.
LEHR_INLINE HalfBitsVec narrow(const FloatVec& v) {
#ifdef LEHR_PAIRS
  return bit_cast<HalfBitsVec>(_mm512_cvtneps_pbh(bit_cast<__m512>(v)));
#else
  return lower_halves(narrow_bits(v));
#endif
}

template <class Count>
LEHR_INLINE FloatVec load(const float* p, Count count) {
  return read<FloatVec>(p, count);
}
template <class Count>
LEHR_INLINE DoubleVec load(const double* p, Count count) {
  return read<DoubleVec>(p, count);
}
template <class Count>
LEHR_INLINE FloatVec load(const Bf16* p, Count count) {
  return widen(read<HalfBitsVec>(p, count));
}
template <class Count>
LEHR_INLINE void store(float* p, const FloatVec& v, Count count) {
  write(p, v, count);
}
template <class Count>
LEHR_INLINE void store(double* p, const DoubleVec& v, Count count) {
  write(p, v, count);
}
template <class Count>
LEHR_INLINE void store(Bf16* p, const FloatVec& v, Count count) {
  write(p, narrow(v), count);
}

LEHR_INLINE float load_one(const float* p) {
  return *p;
}
LEHR_INLINE double load_one(const double* p) {
  return *p;
}
LEHR_INLINE float load_one(const Bf16* p) {
  return bit_cast<float>(static_cast<uint32_t>(p->bits) << 16);
}
LEHR_INLINE void store_one(float* p, float value) {
  *p = value;
}
LEHR_INLINE void store_one(double* p, double value) {
  *p = value;
}
LEHR_INLINE void store_one(Bf16* p, float value) {
  const HalfBitsVec bits = narrow(value - FloatVec{});
  p->bits = bits[0];
}

/// As load, but missing lanes are `otherwise`.
template <class T>
LEHR_INLINE Vec<T> load_or(const T* p, Wide<T>, All all) {
  return load(p, all);
}
template <class T>
LEHR_INLINE Vec<T> load_or(const T* p, Wide<T> otherwise, First first) {
  Vec<T> v = otherwise - Vec<T>{};
  for (int64_t i = 0; i < first.count; ++i) {
    v[i] = load_one(p + i);
  }
  return v;
}

/// Returns v rounded to type T, in the wide type.
LEHR_INLINE FloatVec rounded_to(const float*, const FloatVec& v) {
  return v;
}
LEHR_INLINE DoubleVec rounded_to(const double*, const DoubleVec& v) {
  return v;
}
LEHR_INLINE FloatVec rounded_to(const Bf16*, const FloatVec& v) {
  return widen(narrow(v));
}

/// Calls body(i, count) for i = 0, lanes, 2 lanes, ... below n.
template <class T, class Body>
LEHR_INLINE void for_each_vector(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) {
    body(i, All{});
  }
  if (i < n) {
    body(i, First{n - i});
  }
}

template <class V>
LEHR_INLINE V maximum(const V& a, const V& b) {
  return a > b ? a : b;
}

template <class A>
LEHR_INLINE typename VecOf<A>::type splat(A value) {
  return value - typename VecOf<A>::type{};
}

/// Returns the four bytes at p in all lanes, without interpreting them.
LEHR_INLINE FloatVec repeat(const float* p) {
  uint32_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return bit_cast<FloatVec>(bits - UintVec{});
}

template <class A, int bytes>
struct ShortVec {
  typedef A type __attribute__((vector_size(bytes)));  // gcc accepts no dependent size in a `using`
};

/// Reduces a vector to one element: combines its halves until one lane is left.
template <class A, class V, class Combine>
LEHR_INLINE A across_lanes(const V& v, const Combine& combine) {
  if constexpr (sizeof(V) == 2 * sizeof(A)) {
    return combine(v[0], v[1]);
  } else {
    using Half = typename ShortVec<A, static_cast<int>(sizeof(V) / 2)>::type;
    struct Halves {
      Half low, high;
    };
    const auto halves = bit_cast<Halves>(v);
    return across_lanes<A>(combine(halves.low, halves.high), combine);
  }
}

template <class A, class V>
LEHR_INLINE A horizontal_sum(const V& v) {
  return across_lanes<A>(
      v, [](const auto& a, const auto& b) __attribute__((always_inline)) { return a + b; });
}

template <class A, class V>
LEHR_INLINE A horizontal_max(const V& v) {
  return across_lanes<A>(
      v, [](const auto& a, const auto& b) __attribute__((always_inline)) { return a > b ? a : b; });
}

LEHR_INLINE float square_root(float x) {
  return __builtin_sqrtf(x);
}
LEHR_INLINE double square_root(double x) {
  return __builtin_sqrt(x);
}
LEHR_INLINE FloatVec square_root(const FloatVec& v) {
  FloatVec root;
  for (int64_t i = 0; i < kLanes<float>; ++i) {
    root[i] = __builtin_sqrtf(v[i]);
  }
  return root;
}

// exp(x) = 2^n exp(r) with n = round(x / ln 2) and r in [-ln2/2, ln2/2]. Adding 1.5 * 2^23 (for double 1.5 * 2^52)
// rounds x / ln 2 to an integer, which is then in the low bits. ln 2 is split in two constants, so that r is exact. The
// result is 0 below the smallest normal number. Relative error: 2e-7 (float), 3e-16 (double).
LEHR_INLINE FloatVec exponential(const FloatVec& x) {
  const FloatVec shifted = x * 1.44269504f + 12582912.0f;
  const FloatVec n = shifted - 12582912.0f;
  FloatVec r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  FloatVec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const FloatVec power = bit_cast<FloatVec>((bit_cast<IntVec>(shifted) + 127) << 23);
  const FloatVec result = p * power;
  return x < -87.0f ? FloatVec{} : (x > 88.0f ? x * 3e38f : result);
}

// tanh(x) = 1 - 2 / (exp(2x) + 1); near 0, where that would cancel, an odd polynomial. Relative error: 3e-7.
LEHR_INLINE FloatVec hyperbolic_tangent(const FloatVec& x) {
  const FloatVec size = maximum(x, -x);
  const FloatVec far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
  const FloatVec square = x * x;
  FloatVec p = -5.70498872745e-3f * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  return size < 0.625f ? x + x * square * p : (x < 0.0f ? -far : far);
}

LEHR_INLINE DoubleVec exponential(const DoubleVec& x) {
  const DoubleVec shifted = x * 1.4426950408889634 + 6755399441055744.0;
  const DoubleVec n = shifted - 6755399441055744.0;
  DoubleVec r = x - n * 6.93145751953125e-1;
  r = r - n * 1.42860682030941723212e-6;
  DoubleVec p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + (r + 1.0);
  const DoubleVec power = bit_cast<DoubleVec>((bit_cast<LongVec>(shifted) + 1023) << 52);
  const DoubleVec result = p * power;
  return x < -708.0 ? DoubleVec{} : (x > 709.0 ? x * 1e308 : result);
}

/// Returns sum + a b, where a lane of a and b is one float32, or a pair of bfloat16 whose products are both added.
LEHR_INLINE FloatVec multiply_add(const float*, const FloatVec& sum, const FloatVec& a, const FloatVec& b) {
  return sum + a * b;
}
#ifdef LEHR_PAIRS
LEHR_INLINE FloatVec multiply_add(const Bf16*, const FloatVec& sum, const FloatVec& a, const FloatVec& b) {
  return bit_cast<FloatVec>(_mm512_dpbf16_ps(bit_cast<__m512>(sum), bit_cast<__m512bh>(a), bit_cast<__m512bh>(b)));
}
#endif

}  // namespace
}  // namespace lehr::ops::LEHR_ARCH
