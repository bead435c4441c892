// Bodies that check token ids, and bodies that copy tokens to their experts and sum the results. Each sum is computed
// by one thread in the order of the choices.
#pragma once

#include "lehr/ops/cuda/portable.h"

namespace lehr::ops::cuda {

/// Checks all ids in one group.
struct KnownIds {
  const int64_t* ids;
  int64_t count;
  int64_t size;
  int64_t* known;
  int64_t* note;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t) const {
    int64_t first = count;  // this thread's first id outside of the vocabulary
#pragma unroll 4
    for (int64_t i = group.rank(); i < count; i += group.size()) {
      const int64_t id = ids[i];
      const bool inside = id >= 0 && id < size;
      known[i] = inside ? id : 0;
      first = inside || first < count ? first : i;
    }
    // The minimum over all threads, in two halves, because float32 has only 24 bits.
    constexpr int kBits = 20;
    const float upper = static_cast<float>(first >> kBits);
    const float lower = static_cast<float>(first & ((1 << kBits) - 1));
    const float least = -group.max(-upper);
    const float rest = -group.max(upper == least ? -lower : -static_cast<float>(1 << kBits));
    const int64_t found = (static_cast<int64_t>(least) << kBits) + static_cast<int64_t>(rest);
    if (group.rank() == 0 && found < count && note[0] == 0) {
      note[0] = found + 1;
      note[1] = ids[found];
    }
  }
};

/// Copies one token to the positions of its copies; reads it once, whatever the number of its experts.
template <class T>
struct CopyToken {
  const T* tokens;
  const int64_t* inverse;  ///< (tokens * choices): the sorted position of each copy.
  T* copies;
  int64_t choices;
  int64_t size;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t token) const {
    constexpr int width = kPack<T>;
    const T* const from = tokens + token * size;
    const int64_t* const places = inverse + token * choices;
#pragma unroll 2
    for (int64_t i = group.rank() * width; i < size; i += group.size() * width) {
      const Values<width> values = read_any<width>(from, i, size, packed);
      for (int64_t choice = 0; choice < choices; ++choice) {
        write_any(copies + places[choice] * size, i, size, packed, values);
      }
    }
  }
};

/// Sets one token of out to the sum of its copies times their weights.
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

/// Processes one copy: choice index % choices of token index / choices.
template <class T>
struct SumCopiesBackward {
  TokenCopies<T> call;
  const T* dout;
  T* dsorted;   ///< Null if not requested, like dweights.
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
