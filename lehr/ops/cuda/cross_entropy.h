// Body of the loss of one row of logits and its gradient in place: a reading pass that keeps the maximum and the sum of
// exponentials up to it, and a pass that writes.
#pragma once

#include "lehr/ops/cuda/portable.h"

namespace lehr::ops::cuda {

template <class T>
struct CrossEntropyRow {
  CrossEntropyCall<T> call;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t row) const {
    constexpr int width = kPack<T>;
    T* const logits = call.logits + row * call.size;
    const int64_t label = call.labels[row];
    if (label < 0 || label >= call.size) {
      return without_label(group, row, label == -1 ? 0 : __builtin_nanf(""));
    }
    const float at_label = widen(logits[label]);  // before anyone writes: sums below wait for all
    const float lowest = -__builtin_huge_valf();
    float max = lowest;
    float sum = 0;  // of exp(logit - max)
    const int64_t stride = group.size() * width;
    for (int64_t start = group.rank() * width; start < call.size; start += kAhead * stride) {
      Values<width> values[kAhead];
      float here = max;
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        values[u] = read_any<width>(logits, start + u * stride, call.size, packed, lowest);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          here = fmaxf(here, values[u].at[j]);
        }
      }
      // All -inf so far: any finite number in place of the maximum gives a sum of zero.
      const float base = here == lowest ? 0 : here;
      sum *= exponential(max - base);
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          sum += exponential(values[u].at[j] - base);
        }
      }
      max = here;
    }
    const float highest = group.max(max);
    const double total = group.sum(max == lowest ? 0.0 : static_cast<double>(sum * exponential(max - highest)));
    const double log_likelihood = static_cast<double>(at_label) - static_cast<double>(highest) - log(total);
    if (group.rank() == 0) {
      call.losses[row] = static_cast<float>(-log_likelihood);
    }
    if (!call.gradient) {
      return;
    }
    const double scale = call.row_scale != nullptr ? static_cast<double>(call.row_scale[row]) : 1;
    const float factor = static_cast<float>(scale / total);
    const float label_gradient = static_cast<float>(scale * expm1(log_likelihood));
#pragma unroll 4
    for (int64_t i = group.rank() * width; i < call.size; i += stride) {
      Values<width> values = read_any<width>(logits, i, call.size, packed);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        values.at[j] = i + j == label ? label_gradient : exponential(values.at[j] - highest) * factor;
      }
      write_any(logits, i, call.size, packed, values);
    }
  }

 private:
  static constexpr int kAhead = 4;  // packs that a thread has in flight

  template <class Group>
  LEHR_HOST_DEVICE void without_label(Group& group, int64_t row, float value) const {
    constexpr int width = kPack<T>;
    if (group.rank() == 0) {
      call.losses[row] = value;
    }
    Values<width> values;
#pragma unroll
    for (int j = 0; j < width; ++j) {
      values.at[j] = value;
    }
    for (int64_t i = group.rank() * width; call.gradient && i < call.size; i += group.size() * width) {
      write_any(call.logits + row * call.size, i, call.size, packed, values);
    }
  }
};

}  // namespace lehr::ops::cuda
