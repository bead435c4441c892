// Bodies that copy tokens to the places of their experts and add the results up again, each sum in one thread and in
// the order of the choices.
#pragma once

#include "lehr/ops/cuda/portable.h"

namespace lehr::ops::cuda {

/// copies[index] = tokens[order[index] / choices]
template <class T>
struct CopyToken {
  const T* tokens;
  const int64_t* order;
  T* copies;
  int64_t choices;
  int64_t size;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const T* const from = tokens + order[index] / choices * size;
    T* const to = copies + index * size;
#pragma unroll 4
    for (int64_t i = group.rank() * width; i < size; i += group.size() * width) {
      write_any(to, i, size, packed, read_any<width>(from, i, size, packed));
    }
  }
};

/// One token: out = the sum of its copies times their weights.
template <class T>
struct SumCopies {
  TokenCopies<T> call;
  T* out;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t token) const {
    constexpr int width = kPack<T>;
    const int64_t* const places = call.inverse + token * call.choices;
    for (int64_t i = group.rank() * width; i < call.size; i += group.size() * width) {
      Values<width> sum = {};
#pragma unroll 4
      for (int64_t choice = 0; choice < call.choices; ++choice) {
        const float weight = call.weights != nullptr ? widen(call.weights[token * call.choices + choice]) : 1;
        const Values<width> copy = read_any<width>(call.sorted + places[choice] * call.size, i, call.size, packed);
#pragma unroll
        for (int j = 0; j < width; ++j) {
          sum.at[j] += weight * copy.at[j];
        }
      }
      write_any(out + token * call.size, i, call.size, packed, sum);
    }
  }
};

/// One copy, number index % choices of token index / choices.
template <class T>
struct SumCopiesBackward {
  TokenCopies<T> call;
  const T* dout;
  T* dsorted;   ///< Null if not wanted, as dweights.
  T* dweights;  ///< (tokens, choices)
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const int64_t place = call.inverse[index];
    const T* const incoming = dout + index / call.choices * call.size;
    const float weight = call.weights != nullptr ? widen(call.weights[index]) : 1;
    float sum = 0;
#pragma unroll 2
    for (int64_t i = group.rank() * width; i < call.size; i += group.size() * width) {
      Values<width> d = read_any<width>(incoming, i, call.size, packed);
      if (dweights != nullptr) {
        const Values<width> copy = read_any<width>(call.sorted + place * call.size, i, call.size, packed);
#pragma unroll
        for (int j = 0; j < width; ++j) {
          sum += d.at[j] * copy.at[j];
        }
      }
      if (dsorted != nullptr) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          d.at[j] *= weight;
        }
        write_any(dsorted + place * call.size, i, call.size, packed, d);
      }
    }
    if (dweights != nullptr) {
      sum = group.sum(sum);
      if (group.rank() == 0) {
        dweights[index] = narrow<T>(sum);
      }
    }
  }
};

}  // namespace lehr::ops::cuda
