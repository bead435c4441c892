// Tables of the vectorized CPU kernels, one table per instruction set and element type.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// RMSNorm of rows of `size` elements.
template <class T>
struct RmsNormForward {
  const T* x;
  const T* branch;  ///< Added to x before the norm; null for none.
  T* sum;           ///< Gets x + branch, rounded to T, which is normalized; null without a branch.
  const T* weight;
  T* y;
  Wide<T>* inverse_rms;  ///< One per row; null if no backward follows.
  int64_t size;
  double eps;
  bool zero_centered;  ///< The factor is 1 + weight, and the normalized value is not rounded before it.
};

template <class T>
struct RmsNormBackward {
  const T* dy;
  const T* x;
  const T* weight;
  const Wide<T>* inverse_rms;
  const T* dsum;  ///< Gradient of x from its other readers, which dx includes; null for none.
  T* dx;          ///< Null if not needed.
  int64_t size;
  bool zero_centered;
};

/// CosSin of the rotary embedding. Token t uses row t % angle_rows.
template <class T>
struct RotaryAngles {
  const Wide<T>* cos;  ///< (angle_rows, rotated)
  const Wide<T>* sin;
  int64_t angle_rows;
  int64_t rotated;
  bool interleaved;
};

/// Rotary embedding of (tokens, heads, size).
template <class T>
struct RotaryCall {
  const T* x;
  T* y;
  RotaryAngles<T> angles;
  int64_t heads;
  int64_t size;
  bool backward;  ///< Rotates by the negative angles (the transposed map).
};

template <class T>
struct NormRotaryForward {
  RmsNormForward<T> norm;
  RotaryAngles<T> angles;
  int64_t heads;
};

template <class T>
struct NormRotaryBackward {
  RmsNormBackward<T> norm;
  RotaryAngles<T> angles;
  int64_t heads;
};

/// The largest head size that the norm_rotary kernels support.
constexpr int64_t kMaxFusedHeadSize = 1024;

/// C (rows, cols) = A B, or C += A B if `add`. A is (rows, depth) bfloat16; B is (depth / 2, cols) words, each two
/// bfloat16 that are adjacent along the depth; C is float32. All are row-major and contiguous.
using PairProduct =
    void (*)(int64_t rows, int64_t cols, int64_t depth, const float* a, const float* b, float* c, bool add);

/// Causal attention of queries (batch, queries, query_heads, size) to keys (batch, keys, key_heads, size). The queries
/// have the last positions of the keys. Values and output have value_size instead of size.
template <class T>
struct AttentionCall {
  const T* q;
  const T* k;
  const T* v;
  T* out;
  float* log_sum;             ///< (batch, query_heads, queries) log-sum-exp of the scores; null if not needed.
  const int32_t* first_keys;  ///< (batch, keys): first key of the query at a position, ascending; null for 0.
  const float* sinks;         ///< (query_heads) logits whose value is zero; null for none.
  int64_t batch, queries, keys, query_heads, key_heads, size, value_size;
  int64_t window;  ///< Maximum number of keys per query, up to its own position.
  float scale;
  float softcap;                       ///< 0 for none.
  PairProduct pair_product = nullptr;  ///< Replaces the kernel's matmul of bfloat16 pairs; null for the kernel's own.
};

template <class T>
struct AttentionBackwardCall {
  AttentionCall<T> forward;
  const T* dout;
  T* dq;
  T* dk;
  T* dv;
};

constexpr int64_t kAttentionTile = 64;
constexpr int64_t blocks_of(int64_t rows) {
  return (rows + kAttentionTile - 1) / kAttentionTile;
}
/// Returns the head size padded to whole register blocks of the widest instruction set.
constexpr int64_t padded_head_size(int64_t size) {
  return (size + 31) / 32 * 32;
}

/// Returns the floats of scratch memory, 64-byte aligned, that a job of attention_forward or attention_backward needs.
template <class T>
constexpr int64_t attention_forward_scratch(const AttentionCall<T>& call) {
  const int64_t key_tile = kAttentionTile * padded_head_size(call.size);
  const int64_t value_tile = kAttentionTile * padded_head_size(call.value_size);
  const int64_t blocks = blocks_of(call.keys);
  return (blocks + 1) * (key_tile + value_tile) + kAttentionTile * kAttentionTile;
}
template <class T>
constexpr int64_t attention_backward_scratch(const AttentionCall<T>& call) {
  const int64_t key_tile = kAttentionTile * padded_head_size(call.size);
  const int64_t value_tile = kAttentionTile * padded_head_size(call.value_size);
  const int64_t tiles = call.query_heads / call.key_heads * blocks_of(call.queries);
  return (tiles + 1) * (3 * key_tile + 2 * value_tile) + 2 * kAttentionTile * (kAttentionTile + tiles);
}

/// Random bits of stochastic rounding: 16 per element, a function of its index in the tensor only. They are those of
/// Philox4x32-10 with the key `seed` and a counter whose upper half is `stream`.
struct RoundingNoise {
  uint64_t seed;
  uint64_t stream;
  /// False: eight elements share a block (see noise_bits in optim/stochastic_rounding.cpp). True: element i has block i
  /// and takes the low half of its first word, as Triton's tl.randint(seed, i).
  bool block_an_element;
};

/// Number of elements whose noise is generated together; the unit of the ranges below.
constexpr int64_t kNoiseGroup = 128;

/// The elements of a shard: element 0 has index `first` in the whole parameter.
struct RoundingRange {
  int64_t first;
  int64_t count;
};

/// AdamW on bfloat16 values with moments of type T (float or Bf16) and float32 arithmetic.
template <class T>
struct StochasticAdamWCall {
  Bf16* value;
  const float* grad;      ///< Null if the gradients are bfloat16.
  const Bf16* grad_bf16;  ///< Null if they are float32.
  T* exp_avg;
  T* exp_avg_sq;
  RoundingRange range;
  RoundingNoise value_noise, exp_avg_noise, exp_avg_sq_noise;  ///< The latter two for bfloat16 moments only.
  float grad_factor;                                           ///< Factor of the gradients (clipping).
  float decay;                                                 ///< 1 - lr * weight_decay
  float beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step_size;    ///< lr / (1 - beta1^t)
  float root_factor;  ///< 1 / sqrt(1 - beta2^t)
  float eps;
};

/// AdamW in float32 arithmetic, on values, gradients and moments of type T.
template <class T>
struct AdamWCall {
  T* value;
  const T* grad;
  T* exp_avg;
  T* exp_avg_sq;
  float grad_divisor;  ///< Divisor of the gradients (clipping).
  float decay;         ///< 1 - lr * weight_decay
  float lerp;  ///< exp_avg moves by lerp * (gradient - exp_avg), with lerp = 1 - beta1 if that is below 0.5, ...
  bool lerp_from_grad;  ///< ... else from the gradient on, with lerp = -beta1.
  float beta2, one_minus_beta2;
  float negative_step_size;  ///< -lr / (1 - beta1^t)
  float root_divisor;        ///< sqrt(1 - beta2^t)
  float eps;
};

/// A matrix (rows, columns) x and its values rounded to float8, y; both contiguous.
template <class T>
struct Float8Call {
  const T* x;
  T* y;
  int64_t rows, columns;
};
/// Columns per job of float8_columns.
constexpr int64_t kFloat8Columns = 64;

/// An operand of a GEMM: `count` rows of a, or columns of b, with stride `across`. Each has `depth` elements with
/// stride `along`.
struct GemmOperand {
  const void* elements;
  int64_t across, along, count, depth;
};

/// A row-major matrix of float32 or bfloat16.
struct GemmPlace {
  void* words = nullptr;
  int64_t stride = 0;  ///< Between rows, in elements.
  bool is_bf16 = false;
};

/// to = from + a b, where a `from` without words is zero. a and b are packed in panels [panel][depth][rows or columns]
/// of four-byte words, each one float32 or a pair of bfloat16. The last panel is padded with zeros.
struct GemmCall {
  const float* a;
  const float* b;
  int64_t rows, columns;
  int64_t depth;  ///< In words.
  GemmPlace from, to;
};
/// Maximum number of rows of a that are multiplied by one panel of b before the next panel.
constexpr int64_t kGemmUnitRows = 48;
/// Maximum depth of panels, in words: then kGemmUnitRows rows fit a level-2 cache of 256 KiB, and few matmuls need a
/// second pass over their sums.
constexpr int64_t kGemmDepth = 1024;

/// GEMM kernels of one element type.
struct GemmKernels {
  int64_t rows, columns;  ///< Width of the panels of a, and of b.
  int64_t per_word;       ///< Elements per word: 2 for pairs of bfloat16, else 1.
  /// Packs panels [first, last) of an operand.
  void (*pack)(const GemmOperand& operand, bool is_b, float* to, int64_t first, int64_t last);
  /// Computes units [first, last). With P panels of b, unit i is panel i % P of b with block i / P of the rows of a,
  /// which are split into as few blocks as possible, of nearly equal size.
  void (*multiply)(const GemmCall& call, int64_t first, int64_t last);
};

/// Copies of tokens, sorted by expert: choice c of token n is row inverse[n * choices + c] of `sorted`.
template <class T>
struct TokenCopies {
  const T* sorted;   ///< (tokens * choices, size)
  const T* weights;  ///< (tokens, choices); null for ones.
  const int64_t* inverse;
  int64_t choices, size;
};

/// All kernels for elements of type T. Ranges [first, last) are rows, tokens or elements.
template <class T>
struct KernelTable {
  void (*rms_norm_forward)(const RmsNormForward<T>& call, int64_t first, int64_t last);
  /// Adds the rows' gradient of weight to dweight (size) unless that is null.
  void (*rms_norm_backward)(const RmsNormBackward<T>& call, Wide<T>* dweight, int64_t first, int64_t last);
  void (*rotary)(const RotaryCall<T>& call, int64_t first, int64_t last);
  void (*norm_rotary_forward)(const NormRotaryForward<T>& call, int64_t first, int64_t last);
  void (*norm_rotary_backward)(const NormRotaryBackward<T>& call, Wide<T>* dweight, int64_t first, int64_t last);
  /// Returns -log softmax(logits)[label]. If gradient_scale is not null, overwrites logits by the loss's gradient times
  /// *gradient_scale.
  Wide<T> (*cross_entropy_row)(T* logits, int64_t size, int64_t label, const Wide<T>* gradient_scale);
  /// Returns the sum of squares, in float64.
  double (*sum_of_squares)(const T* x, int64_t size);
  void (*scale)(T* x, double factor, int64_t size);
  /// Runs `rounds` rounds of independent multiply-adds in registers, and returns their FLOPs (ops/register_peak.h).
  double (*multiply_adds)(int64_t rounds);
  /// Writes the sum of the `count` rows (size) with indices `places`.
  void (*sum_rows)(const T* rows, const int64_t* places, int64_t count, int64_t size, T* sum);
  /// Writes the weighted sum of each token's rows to out (tokens, size).
  void (*sum_copies)(const TokenCopies<T>& call, T* out, int64_t first, int64_t last);
  /// Writes the gradients of the rows and of the weights, either of which may be null. call.weights must not be null.
  void (*sum_copies_backward)(
      const TokenCopies<T>& call, const T* dout, T* dsorted, T* dweights, int64_t first, int64_t last);
  /// Rounds rows [first, last) to float8_e4m3fn (ops/float8.h), with one scale per row.
  void (*float8_rows)(const Float8Call<T>& call, int64_t first, int64_t last);
  /// The same with one scale per column; job i has the columns from i * kFloat8Columns on.
  void (*float8_columns)(const Float8Call<T>& call, int64_t first, int64_t last);
  /// Job `index` is key/value head index % key_heads of sequence index / key_heads, with its query heads. Null for
  /// float64. Forward computes the job's query blocks part, part + parts, ...
  void (*attention_forward)(const AttentionCall<T>& call, float* scratch, int64_t index, int64_t part, int64_t parts);
  void (*attention_backward)(const AttentionBackwardCall<T>& call, float* scratch, int64_t index);
  /// Null for float64.
  void (*adamw)(const AdamWCall<T>& call, int64_t first, int64_t last);
  /// Processes the elements whose index in the whole parameter, divided by kNoiseGroup, is in [first, last). Null for
  /// float64.
  void (*stochastic_round)(
      const T* x, Bf16* y, const RoundingRange& range, const RoundingNoise& noise, int64_t first, int64_t last);
  void (*stochastic_adamw)(const StochasticAdamWCall<T>& call, int64_t first, int64_t last);
};

/// Returns the table of an instruction set; T is float, double or Bf16. Inside a parallel region, pass the arch of the
/// thread that started it.
template <class T>
const KernelTable<T>& kernels(Arch arch = current_arch());

/// Returns the GEMM kernels for float32.
const GemmKernels& gemm_kernels(Arch arch = current_arch());
/// Returns the GEMM kernels for bfloat16: with AVX512-BF16 those of pairs, else those that widen to float32. Null with
/// AMX, which oneDNN uses, and on CPUs other than x86-64.
const GemmKernels* bf16_gemm_kernels(Arch arch = current_arch());

/// Returns KernelTable::multiply_adds in AMX's tiles; null if this CPU has none, or the system does not permit them, as
/// in some containers.
double (*tile_multiply_adds(Arch arch = current_arch()))(int64_t rounds);

/// Whether attention in bfloat16 runs its matmuls by a PairProduct: on CPUs with AMX, and within a PairProductScope if
/// the CPU has AVX512-BF16.
bool wants_pair_product(Arch arch = current_arch());

/// Makes attention on this thread use a PairProduct although the CPU has no AMX, until destroyed. For tests of the code
/// that CPUs with AMX run.
class PairProductScope {
 public:
  PairProductScope();
  ~PairProductScope();
  PairProductScope(const PairProductScope&) = delete;
  PairProductScope& operator=(const PairProductScope&) = delete;

 private:
  bool before_;
};

}  // namespace lehr::ops
