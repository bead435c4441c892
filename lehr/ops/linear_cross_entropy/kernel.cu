// Body of the loss of one row of logits and its gradient in place: a pass that reads the row and computes the maximum
// and the running sum of exponentials, and a pass that writes the gradient.
//
// The first pass keeps as much of the row as fits in the group's scratch memory (shared memory on a GPU), so the second
// pass reads only the rest again. It begins at the end of the row, which was read last and is in the L2 cache.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/linear_cross_entropy/kernels.h"

namespace lehr::ops::cuda {

template <class T>
struct CrossEntropyRow {
  CrossEntropyCall<T> call;
  int64_t held;  ///< The number of elements at the beginning of the row that are kept in scratch memory.
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t row) const {
    constexpr int width = kPack<T>;
    T* const logits = call.logits + row * call.size;
    const int64_t label = call.labels[row];
    if (label < 0 || label >= call.size) {
      return without_label(group, row, label == -1 ? 0 : __builtin_nanf(""));
    }
    const float at_label = widen(logits[label]);  // read before any thread writes: the sums below are barriers
    const float lowest = -__builtin_huge_valf();
    float max = lowest;
    float sum = 0;                                        // of exp(logit - max)
    T* const scratch = static_cast<T*>(group.scratch());  // each thread reads only its own elements
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
        write(scratch, start + u * stride, held, values[u]);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
#pragma unroll
        for (int j = 0; j < width; ++j) {
          here = fmaxf(here, values[u].at[j]);
        }
      }
      // If all logits so far are -inf, any finite number in place of the maximum gives a sum of zero.
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
    // The sum is 0 if all logits are -inf, and NaN if one is NaN, which the maximum ignores.
    const bool nothing = max == lowest && sum == 0;
    const double total = group.sum(nothing ? 0.0 : static_cast<double>(sum * exponential(max - highest)));
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
    const int64_t first = group.rank() * width;
    const int64_t last = call.size > first ? first + (call.size - 1 - first) / stride * stride : -1;
#pragma unroll 4
    for (int64_t i = last; i >= 0; i -= stride) {
      Values<width> values = i < held ? read<width>(scratch, i, held) : read_any<width>(logits, i, call.size, packed);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        values.at[j] = i + j == label ? label_gradient : exponential(values.at[j] - highest) * factor;
      }
      write_any(logits, i, call.size, packed, values);
    }
  }

 private:
  static constexpr int kAhead = 4;  // packs per thread in flight

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

namespace {
template <class T>
Status cross_entropy(const CrossEntropyCall<T>& call, int64_t rows) {
  const bool packed = call.size % kPack<T> == 0 && aligned(call.logits);
  const int64_t held = call.gradient ? held_of_row<T>(call.size, Launch::most_scratch()) : 0;
  return Launch::blocks(
      CrossEntropyRow<T>{call, held, packed}, rows, kMostThreads, held * static_cast<int64_t>(sizeof(T)));
}

template <class T>
constexpr CrossEntropyLaunches<T> kCrossEntropy = {.rows = cross_entropy<T>};
const Registered kCrossEntropyEntries(kCrossEntropy<float>, kCrossEntropy<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda
