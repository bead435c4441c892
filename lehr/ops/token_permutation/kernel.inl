// The weighted sum of a token's k copies, which are sorted by expert, in a fixed order.
#pragma once

#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/token_permutation/kernels.h"

namespace lehr::ops::LEHR_ARCH {
namespace {

template <class T>
void sum_copies(const TokenCopies<T>& call, T* out, int64_t first, int64_t last) {
  for (int64_t token = first; token < last; ++token) {
    const int64_t* places = call.inverse + token * call.choices;
    const T* weights = call.weights == nullptr ? nullptr : call.weights + token * call.choices;
    for_each_vector<T>(
        call.size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          Vec<T> sum{};
          for (int64_t choice = 0; choice < call.choices; ++choice) {
            const Vec<T> copy = load(call.sorted + places[choice] * call.size + i, count);
            sum += weights == nullptr ? copy : copy * load_one(weights + choice);
          }
          store(out + token * call.size + i, sum, count);
        });
  }
}

// dsorted[copy] = weight * dout[token], dweights[copy] = <dout[token], sorted[copy]>. dsorted or dweights may be null.
template <class T>
void sum_copies_backward(
    const TokenCopies<T>& call, const T* dout, T* dsorted, T* dweights, int64_t first, int64_t last) {
  for (int64_t token = first; token < last; ++token) {
    for (int64_t choice = token * call.choices; choice < (token + 1) * call.choices; ++choice) {
      const int64_t at = call.inverse[choice] * call.size;
      const Wide<T> weight = load_one(call.weights + choice);
      Vec<T> product{};
      for_each_vector<T>(
          call.size, [&](int64_t i, auto count) __attribute__((always_inline)) {
            const Vec<T> incoming = load(dout + token * call.size + i, count);
            if (dsorted != nullptr) {
              store(dsorted + at + i, incoming * weight, count);
            }
            if (dweights != nullptr) {
              product += incoming * load(call.sorted + at + i, count);
            }
          });
      if (dweights != nullptr) {
        store_one(dweights + choice, horizontal_sum<Wide<T>>(product));
      }
    }
  }
}

template <class T>
constexpr TokenCopyKernels<T> kTokenCopies = {.sum = sum_copies<T>, .sum_backward = sum_copies_backward<T>};

}  // namespace

LEHR_KERNELS(kTokenCopies<float>)
LEHR_KERNELS(kTokenCopies<double>)
LEHR_KERNELS(kTokenCopies<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
