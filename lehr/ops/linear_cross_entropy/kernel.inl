// Cross-entropy and its gradient for one row of logits (V): a reading pass with an online softmax
// (https://arxiv.org/abs/1805.02867), and a writing pass if the gradient is needed. The row, at most a few hundred KB,
// stays in the second-level cache between them.
#pragma once

#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/linear_cross_entropy/kernels.h"

namespace lehr::ops::LEHR_ARCH {
namespace {

template <class A>
constexpr A kLowest = -static_cast<A>(__builtin_inf());

// Block of a row: read twice by the first pass (maximum, then sum), the second time from the first-level cache.
constexpr int64_t kMostLogitBlocks = 512;
LEHR_INLINE int64_t logits_of_block(int64_t size) {
  return size <= 512 * kMostLogitBlocks ? 512 : (size / kMostLogitBlocks / 64 + 1) * 64;
}

template <class Body>
LEHR_INLINE void for_each_block(int64_t size, const Body& body) {
  const int64_t block = logits_of_block(size);
  for (int64_t start = 0; start < size; start += block) {
    body(start, size - start < block ? size - start : block, start / block);
  }
}

template <class T>
LEHR_INLINE Wide<T> greatest_of(const T* x, int64_t count) {
  Vec<T> greatest = splat(kLowest<Wide<T>>);
  for_each_vector<T>(
      count, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
        greatest = maximum(greatest, load_or(x + i, kLowest<Wide<T>>, lanes));
      });
  return horizontal_max<Wide<T>>(greatest);
}

// Returns the sum of exp(x - beside). With `keep`, overwrites x by these exponentials.
template <bool keep, class T>
LEHR_INLINE double sum_exponentials(T* x, int64_t count, Wide<T> beside) {
  Vec<T> sum{};
  for_each_vector<T>(
      count, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
        const Vec<T> each = exponential(load_or(x + i, kLowest<Wide<T>>, lanes) - beside);
        if constexpr (keep) {
          store(x + i, each, lanes);
        }
        sum += each;
      });
  return static_cast<double>(horizontal_sum<Wide<T>>(sum));
}

// Exponentials are most of the work. With `keep`, the reading pass stores exp(logit - m), where m is the maximum up to
// the logit's block, and the writing pass only rescales them. Without `keep`, no gradient is needed, or the stored
// exponentials would be rounded to T, once more than necessary.
template <bool keep, class T>
LEHR_INLINE Wide<T> cross_entropy_of(T* logits, int64_t size, int64_t label, const Wide<T>* gradient_scale) {
  using A = Wide<T>;
  const A at_label = load_one(logits + label);
  A max = kLowest<A>;
  A max_up_to[kMostLogitBlocks];
  double sum = 0;  // of exp(logit - max)
  for_each_block(
      size, [&](int64_t start, int64_t count, int64_t block) __attribute__((always_inline)) {
        const A here = greatest_of(logits + start, count);
        if (here > max) {
          sum *= __builtin_exp(static_cast<double>(max) - static_cast<double>(here));
          max = here;
        }
        max_up_to[block] = max;
        // If all logits so far are -inf, subtract 0: -inf - -inf would be NaN. Their exponentials are 0.
        const A beside = here == kLowest<A> && max == kLowest<A> ? 0 : max;
        sum += sum_exponentials<keep>(logits + start, count, beside);
      });
  const double log_likelihood = static_cast<double>(at_label) - static_cast<double>(max) - __builtin_log(sum);
  if (gradient_scale == nullptr) {
    return static_cast<A>(-log_likelihood);
  }
  // dL/dlogit = scale * (softmax - one_hot(label)); the label's element is written last.
  const double by = static_cast<double>(*gradient_scale) / sum;
  for_each_block(
      size, [&](int64_t start, int64_t count, int64_t block) __attribute__((always_inline)) {
        T* const x = logits + start;
        const A moved = max_up_to[block] == max
                            ? static_cast<A>(by)
                            : static_cast<A>(by * __builtin_exp(static_cast<double>(max_up_to[block]) - static_cast<double>(max)));
        for_each_vector<T>(
            count, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
              const Vec<T> value = load(x + i, lanes);
              store(x + i, keep ? value * moved : exponential(value - max) * static_cast<A>(by), lanes);
            });
      });
  store_one(logits + label, static_cast<A>(*gradient_scale * (__builtin_exp(log_likelihood) - 1)));
  return static_cast<A>(-log_likelihood);
}

template <class T>
Wide<T> cross_entropy_row(T* logits, int64_t size, int64_t label, const Wide<T>* gradient_scale) {
  if constexpr (sizeof(T) == sizeof(Wide<T>)) {
    if (gradient_scale != nullptr) {
      return cross_entropy_of<true>(logits, size, label, gradient_scale);
    }
  }
  return cross_entropy_of<false>(logits, size, label, gradient_scale);
}

template <class T>
constexpr CrossEntropyKernels<T> kCrossEntropy = {.row = cross_entropy_row<T>};

}  // namespace

LEHR_KERNELS(kCrossEntropy<float>)
LEHR_KERNELS(kCrossEntropy<double>)
LEHR_KERNELS(kCrossEntropy<Bf16>)

}  // namespace lehr::ops::LEHR_ARCH
