// The CUDA kernels as one table of functions, which the module liblehr_cuda.so hands to the program when it is opened.
//
// Plain types only: neither side needs the other's headers, and the same table can be filled with loops on the host
// (test/ops/host_launch.h), so that everything but the launches is tested without a GPU.
#pragma once

#include <cstdint>

#include "lehr/ops/kernels/table.h"

namespace lehr::ops::cuda {

/// Null if the kernels were started, else what CUDA says about it. They run on the current device and stream, and
/// nobody waits for them.
using Status = const char*;

/// Where the gradient of the weight of rows is summed: first by groups of threads, each in a row of its own, then over
/// them in order. How many there are depends on the shape alone (weight_gradient_parts), so the result does too.
template <class T>
struct WeightGradient {
  float* parts;   ///< (count, size); null if not wanted.
  int64_t count;  ///< At most as many as there are rows.
  T* sum;         ///< (size)
};

/// Losses and gradients of rows of logits.
template <class T>
struct CrossEntropyCall {
  T* logits;              ///< (rows, size); becomes the gradient if that is wanted.
  const int64_t* labels;  ///< -1: the row does not count, and gives zeros. Others out of range give NaN.
  float* losses;
  const float* row_scale;  ///< What each row's gradient is multiplied by; null for 1.
  int64_t size;
  bool gradient;
};

/// Tokens and their copies in sorted order (ops/token_permutation.h).
template <class T>
struct TokenCopies {
  const T* sorted;         ///< (tokens * choices, size)
  const T* weights;        ///< (tokens, choices); null for 1.
  const int64_t* inverse;  ///< (tokens * choices): the sorted place of each copy.
  int64_t choices;
  int64_t size;
};

/// Some tensors of one type, cut into pieces of kListPiece elements.
struct TensorList {
  static constexpr int64_t kMost = 64;
  void* data[kMost];
  int64_t count[kMost];        ///< Elements of each.
  int64_t first_piece[kMost];  ///< The sum of the pieces of those before it.
  int64_t tensors;
  int64_t pieces;  ///< Of all.
};
constexpr int64_t kListPiece = 1 << 16;

/// A tensor's elements in runs that lie next to each other in the whole parameter too; all runs have one length.
struct RoundingRuns {
  static constexpr int64_t kMostDims = 6;
  int64_t count;            ///< Elements of a run.
  int64_t runs;             ///< How many.
  int64_t first;            ///< Index of the first run's first element in the whole parameter.
  int64_t dims;             ///< Run r is number (r / stride of sizes) % size in each of these, slowest first.
  int64_t size[kMostDims];  ///< How many runs along it.
  int64_t step[kMostDims];  ///< How far apart in the whole parameter.
};

/// Kernels on elements of type T, float or Bf16. Rows may be none; what a table function needs not is null.
template <class T>
struct ElementKernels {
  /// Rows of at most kMostInRow elements, in 16-byte packs (fits_row). Their pointers lie at multiples of 16 bytes, as
  /// those of the rotations.
  Status (*rms_norm_forward)(const RmsNormForward<T>& call, int64_t rows);
  Status (*rms_norm_backward)(const RmsNormBackward<T>& call, const WeightGradient<T>& dweight, int64_t rows);
  /// Heads for which fits_rotation holds.
  Status (*rotary)(const RotaryCall<T>& call, int64_t tokens);
  /// And of at most kMostInHead elements.
  Status (*norm_rotary_forward)(const NormRotaryForward<T>& call, int64_t tokens);
  Status (*norm_rotary_backward)(const NormRotaryBackward<T>& call, const WeightGradient<T>& dweight, int64_t tokens);
  Status (*silu_mul_forward)(const T* gate, const T* up, T* y, int64_t count);
  /// dgate or dup may be null.
  Status (*silu_mul_backward)(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t count);
  Status (*cross_entropy)(const CrossEntropyCall<T>& call, int64_t rows);
  /// One sum in float64 a piece.
  Status (*sums_of_squares)(const TensorList& list, double* sums);
  /// `factor` lies on the device.
  Status (*scale)(const TensorList& list, const double* factor);
  /// copies[i] = tokens[order[i] / choices], rows of `size`.
  Status (*copy_tokens)(const T* tokens, const int64_t* order, T* copies, int64_t rows, int64_t choices, int64_t size);
  /// out (tokens, size): the weighted sum of each token's copies, in the order of its choices.
  Status (*sum_copies)(const TokenCopies<T>& call, T* out, int64_t tokens);
  /// Gradients of sum_copies; dsorted or dweights may be null.
  Status (*sum_copies_backward)(const TokenCopies<T>& call, const T* dout, T* dsorted, T* dweights, int64_t tokens);
  /// Moments of type T. The call's range is not read: `runs` stands for it. No noise with block_an_element here.
  Status (*stochastic_adamw)(const StochasticAdamWCall<T>& call, const RoundingRuns& runs);
};

struct Table {
  int64_t version;
  int64_t layout;
  ElementKernels<float> f32;
  ElementKernels<Bf16> bf16;
  /// total = the sum of `count` numbers, in an order that depends on the count alone.
  Status (*sum)(const double* parts, int64_t count, double* total);
  Status (*stochastic_round)(const float* x, Bf16* y, const RoundingNoise& noise, const RoundingRuns& runs);
};

/// Raised with every change of what a function of the table means.
constexpr int64_t kTableVersion = 2;
/// Differs, as a rule, between tables and calls of different layouts.
constexpr int64_t kTableLayout = static_cast<int64_t>(
    sizeof(Table) + 3 * sizeof(NormRotaryForward<float>) + 5 * sizeof(NormRotaryBackward<float>) +
    7 * sizeof(RotaryCall<float>) + 11 * sizeof(CrossEntropyCall<float>) + 13 * sizeof(TokenCopies<float>) +
    17 * sizeof(TensorList) + 19 * sizeof(RoundingRuns) + 23 * sizeof(StochasticAdamWCall<float>));

/// Work of the current device that is recorded as a graph (ops/recorded_work.h). They throw what LibTorch throws.
struct GraphFunctions {
  void* (*record)(void (*work)(void* context), void* context);  ///< Calls work(context) once.
  void (*replay)(void* graph);                                  ///< On the current stream.
  void (*destroy)(void* graph);
};

/// The module's functions: one gives the table; the other null, or why the current device does not run its kernels (a
/// text that lives until this thread's next call).
constexpr const char* kTableFunction = "lehr_cuda_table";
using TableFunction = const Table*();
constexpr const char* kGraphsFunction = "lehr_cuda_graphs";
using GraphsFunction = const GraphFunctions*();
constexpr const char* kProblemFunction = "lehr_cuda_problem";
using ProblemFunction = Status();

/// The longest row that a group of threads holds.
constexpr int64_t kMostInRow = 8192;
/// And the longest head, whose group is part of one warp.
constexpr int64_t kMostInHead = 512;
constexpr int64_t kMostThreads = 512;  ///< Of a group.

/// Elements that a thread reads at once: 16 bytes.
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

/// The least power of two that is `count` or more.
constexpr int64_t power_of_two_for(int64_t count) {
  int64_t power = 1;
  while (power < count) {
    power *= 2;
  }
  return power;
}

/// Threads for a row of `packs` of which each thread holds `kept`: part of a warp where that does, for its sums need no
/// shared memory.
constexpr int64_t threads_for(int64_t packs, int64_t kept) {
  int64_t threads = power_of_two_for(packs);
  threads = threads < 32 ? threads : 32;
  while (threads * kept < packs) {
    threads *= 2;
  }
  return threads;
}

/// 16-byte packs of a row, and of pairs of elements of a head, that a thread of a norm holds in registers.
template <class T>
constexpr int kKeptPacks = 16 / kPack<T>;
template <class T>
constexpr int kKeptPairPacks = 8 / kPack<T>;

template <class T>
constexpr int64_t row_threads(int64_t size) {
  return threads_for(size / kPack<T>, kKeptPacks<T>);
}
template <class T>
constexpr int64_t head_threads(int64_t size) {
  return threads_for(size / 2 / kPack<T>, kKeptPairPacks<T>);
}

/// Whether the kernels of norms take rows of `size`.
template <class T>
constexpr bool fits_row(int64_t size) {
  return size > 0 && size <= kMostInRow && size % kPack<T> == 0;
}
/// Whether those of rotations take heads of `size` of which `rotated` elements turn.
template <class T>
constexpr bool fits_rotation(int64_t size, int64_t rotated) {
  return size > 0 && size % (2 * kPack<T>) == 0 && rotated % (2 * kPack<T>) == 0;
}

/// Groups of `threads` that share `rows` in a backward pass of a norm: 512 threads for each of 132 multiprocessors,
/// whatever the device has.
constexpr int64_t weight_gradient_parts(int64_t rows, int64_t threads) {
  const int64_t most = 132 * 512 / threads;
  return rows < most ? rows : most;
}

}  // namespace lehr::ops::cuda
