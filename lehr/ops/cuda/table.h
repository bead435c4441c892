// The CUDA kernels as one table of functions, which the program obtains when it opens the module liblehr_cuda.so.
//
// It uses plain types only: neither side needs the other's headers, and tests can fill the table with loops on the host
// (test/ops/host_launch.h), so everything except the launches is tested without a GPU.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/table.h"

namespace lehr::ops::cuda {

/// Buffers for the gradient of the weight of rows: groups of threads sum into a row each, and a second kernel adds
/// these rows in order. The number of groups depends only on the shape (weight_gradient_parts), so the result does too.
template <class T>
struct WeightGradient {
  float* parts;   ///< (count, size); null if not requested.
  int64_t count;  ///< At most the number of rows.
  T* sum;         ///< (size)
};

/// Losses and gradients of rows of logits.
template <class T>
struct CrossEntropyCall {
  T* logits;              ///< (rows, size); replaced by the gradient if requested.
  const int64_t* labels;  ///< -1: ignored, with loss and gradient zero. Other labels that are out of range give NaN.
  float* losses;
  const float* row_scale;  ///< Factors of the rows' gradients; null for 1.
  int64_t size;
  bool gradient;
};

/// Tokens and their copies in sorted order (ops/token_permutation.h).
template <class T>
struct TokenCopies {
  const T* sorted;         ///< (tokens * choices, size)
  const T* weights;        ///< (tokens, choices); null for 1.
  const int64_t* inverse;  ///< (tokens * choices): the sorted position of each copy.
  int64_t choices;
  int64_t size;
};

/// Several tensors of one dtype, divided into pieces of kListPiece elements.
struct TensorList {
  static constexpr int64_t kMost = 64;
  void* data[kMost];
  int64_t count[kMost];        ///< Elements per tensor.
  int64_t first_piece[kMost];  ///< Number of pieces of all tensors before.
  int64_t tensors;
  int64_t pieces;  ///< Of all tensors.
};
constexpr int64_t kListPiece = 1 << 16;

/// A tensor's elements as runs of equal length that are contiguous in the whole parameter too.
struct RoundingRuns {
  static constexpr int64_t kMostDims = 6;
  int64_t count;            ///< Elements per run.
  int64_t runs;             ///< Number of runs.
  int64_t first;            ///< Index of the first run's first element in the whole parameter.
  int64_t dims;             ///< Dimensions, slowest first: run r has index (r / stride of sizes) % size in each.
  int64_t size[kMostDims];  ///< Number of runs along a dimension.
  int64_t step[kMostDims];  ///< Distance of the runs in the whole parameter.
};

/// A contiguous matrix (rows, columns) that is rounded to float8_e4m3fn (ops/float8.h).
template <class T>
struct Float8Operand {
  const T* x;
  int64_t rows, columns;
  uint8_t* by_row;       ///< (rows, columns), with a scale per row; null if not requested.
  float* row_scales;     ///< (rows): inverse scales.
  uint8_t* by_column;    ///< (columns, rows): transposed, with a scale per column; null if not requested.
  float* column_scales;  ///< (columns): inverse scales.
  float* parts;          ///< (float8_parts(rows), columns): workspace for the scales of columns.
};
/// Returns the number of groups of threads that search the rows for the largest elements of columns.
constexpr int64_t float8_parts(int64_t rows) {
  return rows < 264 ? rows : 264;
}

/// Several tensors that one launch updates by a step of AdamW (StochasticAdamWCall), all with gradients of one dtype.
/// The numbers that depend on the tensor's own step count are stored per tensor. Smaller than 4 KB, which every GPU
/// accepts as a launch's arguments.
template <class T>
struct StochasticAdamWList {
  static constexpr int64_t kMost = 16;
  struct One {
    Bf16* value;
    const void* grad;
    T* exp_avg;
    T* exp_avg_sq;
    uint64_t value_stream, exp_avg_stream, exp_avg_sq_stream;  ///< Streams of the noise; the seed is shared.
    float step_size;
    float root_factor;
    RoundingRuns runs;
    int64_t first_group;  ///< Number of groups of all tensors before; see groups_of.
  };
  One of[kMost];
  int64_t tensors;
  int64_t groups;  ///< Of all tensors.
  uint64_t seed;
  bool wide_grads;          ///< float, else Bf16.
  const float* grad_scale;  ///< On the device: a factor of the gradients besides grad_factor. Null: 1.
  const float* found_inf;   ///< On the device: if it is not 0, nothing is written. Null: 0.
  float grad_factor, decay, beta1, beta2, one_minus_beta1, one_minus_beta2, eps;
};

/// Returns the most groups of 128 elements that a run touches.
constexpr int64_t groups_a_run(int64_t count) {
  return (count + kNoiseGroup - 1) / kNoiseGroup + 1;
}
/// Returns the number of groups of all runs of a tensor.
constexpr int64_t groups_of(const RoundingRuns& runs) {
  return runs.runs * groups_a_run(runs.count);
}

/// Kernels for elements of type T, float or Bf16. The number of rows may be zero. Arguments that are not needed are
/// null.
template <class T>
struct NormTable {
  static constexpr KernelId kId = {"norms", sizeof(T), 1};
  /// Rows of at most kMostInRow elements, in 16-byte packs (fits_row). Their pointers are aligned to 16 bytes, as are
  /// those of the rotations.
  Status (*rms_norm_forward)(const RmsNormForward<T>& call, int64_t rows);
  Status (*rms_norm_backward)(const RmsNormBackward<T>& call, const WeightGradient<T>& dweight, int64_t rows);
  /// Heads for which fits_rotation is true.
  Status (*rotary)(const RotaryCall<T>& call, int64_t tokens);
  /// The same, with heads of at most kMostInHead elements.
  Status (*norm_rotary_forward)(const NormRotaryForward<T>& call, int64_t tokens);
  Status (*norm_rotary_backward)(const NormRotaryBackward<T>& call, const WeightGradient<T>& dweight, int64_t tokens);
};

template <class T>
struct RestTable {
  static constexpr KernelId kId = {"rest", sizeof(T), 1};
  Status (*cross_entropy)(const CrossEntropyCall<T>& call, int64_t rows);
  /// One sum in float64 per piece.
  Status (*sums_of_squares)(const TensorList& list, double* sums);
  /// `factor` is on the device.
  Status (*scale)(const TensorList& list, const double* factor);
  /// copies[inverse[i]] = tokens[i / choices], rows of `size`, for `count` tokens.
  Status (*copy_tokens)(
      const T* tokens, const int64_t* inverse, T* copies, int64_t count, int64_t choices, int64_t size);
  /// out (tokens, size): the weighted sum of each token's copies, in the order of its choices.
  Status (*sum_copies)(const TokenCopies<T>& call, T* out, int64_t tokens);
  /// Gradients of sum_copies; dsorted or dweights may be null.
  Status (*sum_copies_backward)(const TokenCopies<T>& call, const T* dout, T* dsorted, T* dweights, int64_t tokens);
  /// For matrices of at least one element.
  Status (*to_float8)(const Float8Operand<T>& call);
  /// Writes zeros to each group of (groups, size) elements that has no rows; the rows of a group end at ends[group].
  Status (*clear_empty_groups)(T* groups, const int32_t* ends, int64_t count, int64_t size);
  /// Moments of type T. Does not support noise with block_an_element.
  Status (*stochastic_adamw)(const StochasticAdamWList<T>& list);
};

struct PlainTable {
  static constexpr KernelId kId = {"plain", 0, 1};
  /// Sets total to the sum of `count` numbers, in an order that depends only on the count.
  Status (*sum)(const double* parts, int64_t count, double* total);
  Status (*stochastic_round)(const float* x, Bf16* y, const RoundingNoise& noise, const RoundingRuns& runs);
  /// Sets known[i] to ids[i], or to 0 if that is outside of [0, size). Records the first such id: note[0] is its
  /// position + 1, and note[1] the id, unless note[0] is already set.
  Status (*known_ids)(const int64_t* ids, int64_t count, int64_t size, int64_t* known, int64_t* note);
};

/// The longest row that a group of threads can hold.
constexpr int64_t kMostInRow = 8192;
/// The longest head, whose group is part of one warp.
constexpr int64_t kMostInHead = 512;
/// The number of 16-byte packs of a row, and of pairs of elements of a head, that a thread of a norm holds in
/// registers.
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

/// True if the kernels of norms support rows of `size`.
template <class T>
constexpr bool fits_row(int64_t size) {
  return size > 0 && size <= kMostInRow && size % kPack<T> == 0;
}
/// True if the kernels of rotations support heads of `size`, of which `rotated` elements are rotated.
template <class T>
constexpr bool fits_rotation(int64_t size, int64_t rotated) {
  return size > 0 && size % (2 * kPack<T>) == 0 && rotated % (2 * kPack<T>) == 0;
}

/// Returns the number of groups of `threads` that share `rows` in the backward pass of a norm: 512 threads for each of
/// 132 multiprocessors, whatever the device has.
constexpr int64_t weight_gradient_parts(int64_t rows, int64_t threads) {
  const int64_t most = 132 * 512 / threads;
  return rows < most ? rows : most;
}

}  // namespace lehr::ops::cuda
