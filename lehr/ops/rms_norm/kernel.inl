// RMSNorm (https://arxiv.org/abs/1910.07467), one row at a time: y = x / rms(x) * factor. A row stays in the
// first-level cache between its two passes.
#pragma once

#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/rms_norm/kernels.h"

namespace lehr::ops::LEHR_ARCH {
namespace {

// Returns 1 / sqrt(mean(x^2) + eps). Four accumulators hide the latency of the additions.
template <class T, class Size>
LEHR_INLINE Wide<T> inverse_rms_of(const T* x, Size size, double eps) {
  constexpr int64_t lanes = kLanes<T>;
  Vec<T> sum0{}, sum1{}, sum2{}, sum3{};
  int64_t i = 0;
  for (; i + 4 * lanes <= size; i += 4 * lanes) {
    const Vec<T> a = load(x + i, All{}), b = load(x + i + lanes, All{});
    const Vec<T> c = load(x + i + 2 * lanes, All{}), d = load(x + i + 3 * lanes, All{});
    sum0 += a * a;
    sum1 += b * b;
    sum2 += c * c;
    sum3 += d * d;
  }
  for_each_vector<T>(
      size - i, [&](int64_t j, auto count) __attribute__((always_inline)) {
        const Vec<T> a = load(x + i + j, count);
        sum0 += a * a;
      });
  const Wide<T> sum = horizontal_sum<Wide<T>>((sum0 + sum1) + (sum2 + sum3));
  const Wide<T> mean_square = sum / static_cast<Wide<T>>(size);
  return static_cast<Wide<T>>(1) / square_root(mean_square + static_cast<Wide<T>>(eps));
}

// Calls body(Yes{}) or body(No{}), so that a branch is taken outside of a loop.
template <class Body>
LEHR_INLINE void choose(bool choice, const Body& body) {
  if (choice) {
    body(Yes{});
  } else {
    body(No{});
  }
}

// Returns the factor of the normalized values: the weight, or 1 + weight.
template <class T, class ZeroCentered, class Count>
LEHR_INLINE Vec<T> norm_factor(const T* weight, ZeroCentered, Count count) {
  if constexpr (ZeroCentered::value) {
    return load(weight, count) + static_cast<Wide<T>>(1);
  } else {
    return load(weight, count);
  }
}

// sum = x + branch, rounded to T: the new residual stream.
template <class T>
LEHR_INLINE void add_row(const T* x, const T* branch, T* sum, int64_t size) {
  for_each_vector<T>(
      size, [&](int64_t i, auto count) __attribute__((always_inline)) {
        store(sum + i, load(x + i, count) + load(branch + i, count), count);
      });
}

template <class T>
void rms_norm_forward(const RmsNormForward<T>& call, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const T* x = call.x + row * call.size;
    if (call.branch != nullptr) {
      T* const sum = call.sum + row * call.size;
      add_row(x, call.branch + row * call.size, sum, call.size);
      x = sum;
    }
    T* y = call.y + row * call.size;
    const Wide<T> inverse_rms = inverse_rms_of(x, call.size, call.eps);
    if (call.inverse_rms != nullptr) {
      call.inverse_rms[row] = inverse_rms;
    }
    choose(
        call.zero_centered, [&](auto zero_centered) __attribute__((always_inline)) {
          for_each_vector<T>(
              call.size, [&](int64_t i, auto count) __attribute__((always_inline)) {
                const Vec<T> normalized = load(x + i, count) * inverse_rms;
                const Vec<T> factor = norm_factor(call.weight + i, zero_centered, count);
                store(y + i, (zero_centered.value ? normalized : rounded_to(x, normalized)) * factor, count);
              });
        });
  }
}

// With h = x / rms and g = dy * factor: dx = (g - h mean(g h)) / rms, and dweight = sum over rows of dy h. The rounding
// of h to T is differentiated as the identity, like autograd's cast; dweight uses h as forward multiplied it, rounded
// or not. dx includes dsum, if it is given. dy has type T, or Wide<T> if it comes from a fused operator.
template <class T, class D, class ZeroCentered, class Size>
LEHR_INLINE void rms_norm_backward_row(
    const D* dy,
    const T* x,
    const T* weight,
    ZeroCentered zero_centered,
    Wide<T> inverse_rms,
    T* dx,
    Wide<T>* dweight,
    Size size,
    const T* dsum = nullptr) {
  Vec<T> sum{};  // g h
  const auto visit = [&](auto with_dweight) __attribute__((always_inline)) {
    for_each_vector<T>(
        size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const Vec<T> normalized = load(x + i, count) * inverse_rms;
          const Vec<T> incoming = load(dy + i, count);
          sum += incoming * norm_factor(weight + i, zero_centered, count) * normalized;
          if constexpr (decltype(with_dweight)::value) {
            const Vec<T> met = ZeroCentered::value ? normalized : rounded_to(x, normalized);
            store(dweight + i, load(dweight + i, count) + incoming * met, count);
          }
        });
  };
  choose(dweight != nullptr, visit);
  if (dx == nullptr) {
    return;
  }
  const Wide<T> mean = horizontal_sum<Wide<T>>(sum) / static_cast<Wide<T>>(size);
  const auto write = [&](auto with_dsum) __attribute__((always_inline)) {
    for_each_vector<T>(
        size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          const Vec<T> normalized = load(x + i, count) * inverse_rms;
          const Vec<T> g = load(dy + i, count) * norm_factor(weight + i, zero_centered, count);
          Vec<T> d = (g - normalized * mean) * inverse_rms;
          if constexpr (decltype(with_dsum)::value) {
            d += load(dsum + i, count);
          }
          store(dx + i, d, count);
        });
  };
  choose(dsum != nullptr, write);
}

template <class T>
void rms_norm_backward(const RmsNormBackward<T>& call, Wide<T>* dweight, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * call.size;
    choose(
        call.zero_centered, [&](auto zero_centered) __attribute__((always_inline)) {
          rms_norm_backward_row(
              call.dy + at,
              call.x + at,
              call.weight,
              zero_centered,
              call.inverse_rms[row],
              call.dx ? call.dx + at : nullptr,
              dweight,
              call.size,
              call.dsum ? call.dsum + at : nullptr);
        });
  }
}

template <class T>
constexpr RmsNormKernels<T> kRmsNorm = {.forward = rms_norm_forward<T>, .backward = rms_norm_backward<T>};

}  // namespace

LEHR_KERNELS(kRmsNorm<float>)
LEHR_KERNELS(kRmsNorm<double>)
LEHR_KERNELS(kRmsNorm<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
