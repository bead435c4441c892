// gpt-oss's gate on the CPU.
#pragma once

#include "lehr/ops/clamped_swiglu/kernels.h"
#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

template <class T>
struct GateAndUp {
  Vec<T> gate, up;
};

template <int... index>
struct Lanes {};
template <int count, int... index>
struct LanesBelow : LanesBelow<count - 1, count - 1, index...> {};
template <int... index>
struct LanesBelow<0, index...> {
  using type = Lanes<index...>;
};

// The even and the odd elements of two vectors.
template <class T, int... i>
LEHR_INLINE GateAndUp<T> separated(const Vec<T>& low, const Vec<T>& high, Lanes<i...>) {
  return {__builtin_shufflevector(low, high, (2 * i)...), __builtin_shufflevector(low, high, (2 * i + 1)...)};
}
// Two vectors of pairs.
template <class T, int... i>
LEHR_INLINE GateAndUp<T> in_pairs(const GateAndUp<T>& v, Lanes<i...>) {
  constexpr int lanes = kLanes<T>;
  return {
      __builtin_shufflevector(v.gate, v.up, (i / 2 + i % 2 * lanes)...),
      __builtin_shufflevector(v.gate, v.up, (i / 2 + lanes / 2 + i % 2 * lanes)...)};
}

template <class T>
LEHR_INLINE GateAndUp<T> load_pairs(const T* p, All) {
  return separated<T>(load(p, All{}), load(p + kLanes<T>, All{}), typename LanesBelow<kLanes<T>>::type{});
}
template <class T>
LEHR_INLINE GateAndUp<T> load_pairs(const T* p, First first) {
  GateAndUp<T> pairs{};
  for (int64_t i = 0; i < first.count; ++i) {
    pairs.gate[i] = load_one(p + 2 * i);
    pairs.up[i] = load_one(p + 2 * i + 1);
  }
  return pairs;
}

template <class T>
LEHR_INLINE void store_pairs(T* p, const GateAndUp<T>& pairs, All) {
  const auto [low, high] = in_pairs<T>(pairs, typename LanesBelow<kLanes<T>>::type{});
  store(p, low, All{});
  store(p + kLanes<T>, high, All{});
}
template <class T>
LEHR_INLINE void store_pairs(T* p, const GateAndUp<T>& pairs, First first) {
  for (int64_t i = 0; i < first.count; ++i) {
    store_one(p + 2 * i, pairs.gate[i]);
    store_one(p + 2 * i + 1, pairs.up[i]);
  }
}

// NaN stays NaN in both.
template <class V>
LEHR_INLINE V at_most(const V& v, const V& limit) {
  return v > limit ? limit : v;
}
template <class V>
LEHR_INLINE V at_least(const V& v, const V& limit) {
  return v < limit ? limit : v;
}

template <class T>
void clamped_swiglu_forward(const T* gate_up, T* y, double limit, double alpha, int64_t first, int64_t last) {
  const Vec<T> most = splat(static_cast<Wide<T>>(limit)), slope = splat(static_cast<Wide<T>>(alpha));
  for_each_vector<T>(
      last - first, [&](int64_t j, auto count) __attribute__((always_inline)) {
        const int64_t i = first + j;
        const GateAndUp<T> pairs = load_pairs(gate_up + 2 * i, count);
        const Vec<T> g = at_most(pairs.gate, most), u = at_least<Vec<T>>(at_most(pairs.up, most), -most);
        store(y + i, (u + 1) * (g / (exponential(-slope * g) + 1)), count);
      });
}

// With s = sigmoid(alpha g): the derivative of g s is s (1 + alpha g (1 - s)).
template <class T>
void clamped_swiglu_backward(
    const T* dy, const T* gate_up, T* dgate_up, double limit, double alpha, int64_t first, int64_t last) {
  const Vec<T> most = splat(static_cast<Wide<T>>(limit)), slope = splat(static_cast<Wide<T>>(alpha));
  for_each_vector<T>(
      last - first, [&](int64_t j, auto count) __attribute__((always_inline)) {
        const int64_t i = first + j;
        const GateAndUp<T> pairs = load_pairs(gate_up + 2 * i, count);
        const Vec<T> g = at_most(pairs.gate, most), u = at_least<Vec<T>>(at_most(pairs.up, most), -most);
        const Vec<T> incoming = load(dy + i, count);
        const Vec<T> s = splat(static_cast<Wide<T>>(1)) / (exponential(-slope * g) + 1);
        const Vec<T> dgate = incoming * (u + 1) * (s * (slope * g * (1 - s) + 1)), dup = incoming * (g * s);
        const Vec<T> zero{};
        store_pairs<T>(
            dgate_up + 2 * i,
            {.gate = pairs.gate <= most ? dgate : zero, .up = pairs.up == u ? dup : zero},
            count);
      });
}

template <class T>
constexpr ClampedSwiGLUKernels<T> kClampedSwiGLU = {
    .forward = clamped_swiglu_forward<T>, .backward = clamped_swiglu_backward<T>};

}  // namespace

LEHR_KERNELS(kClampedSwiGLU<float>)
LEHR_KERNELS(kClampedSwiGLU<double>)
LEHR_KERNELS(kClampedSwiGLU<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
