// Copies of tokens to their experts, and sums of the results, on a GPU. Each sum is computed by one thread in the order
// of the choices.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/token_permutation/kernels.h"

namespace lehr::ops::cuda {

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

namespace {
template <class T>
Status copy_tokens(const T* tokens, const int64_t* inverse, T* copies, int64_t count, int64_t choices, int64_t size) {
  const bool packed = size % kPack<T> == 0 && aligned(tokens, copies);
  return Launch::warps(CopyToken<T>{tokens, inverse, copies, choices, size, packed}, count, 32);
}

template <class T>
Status sum_copies(const TokenCopies<T>& call, T* out, int64_t tokens) {
  const bool packed = call.size % kPack<T> == 0 && aligned(call.sorted, out);
  return Launch::warps(SumCopies<T>{call, out, packed}, tokens, 32);
}

template <class T>
Status sum_copies_backward(const TokenCopies<T>& call, const T* dout, T* dsorted, T* dweights, int64_t tokens) {
  const bool packed = call.size % kPack<T> == 0 && aligned(call.sorted, dout, dsorted);
  const SumCopiesBackward<T> body{call, dout, dsorted, dweights, packed};
  return Launch::warps(body, tokens * call.choices, 32);
}

template <class T>
constexpr TokenCopyLaunches<T> kTokenCopies = {
    .copy = copy_tokens<T>, .sum = sum_copies<T>, .sum_backward = sum_copies_backward<T>};
const Registered kTokenCopiesEntries(kTokenCopies<float>, kTokenCopies<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda
