// The vectorised CPU kernels as tables of functions, one table for each instruction set and element type.
//
// The kernels are compiled several times with different compiler flags, so neither this header nor what they include
// may bring in inline code shared with the rest of the program: the linker would keep one copy of it, perhaps the one
// that this machine cannot run. Hence no LibTorch and no standard containers here.
#pragma once

#include <cstdint>

namespace lehr::ops {

/// A bfloat16 as it lies in memory, like at::BFloat16.
struct Bf16 {
  uint16_t bits;
};

template <class T>
struct WideOf {
  using type = float;
};
template <>
struct WideOf<double> {
  using type = double;
};
/// The type of the arithmetic on T.
template <class T>
using Wide = typename WideOf<T>::type;

/// Normalization of rows of `size` elements.
template <class T>
struct RmsNormForward {
  const T* x;
  const T* branch;  ///< What is added to x before; null for nothing.
  T* sum;           ///< Of the two, rounded to T, which is normalized; null without a branch.
  const T* weight;
  T* y;
  Wide<T>* inverse_rms;  ///< One a row; null if no backward pass follows.
  int64_t size;
  double eps;
  bool zero_centered;  ///< 1 + weight multiplies, without rounding before it.
};

template <class T>
struct RmsNormBackward {
  const T* dy;
  const T* x;
  const T* weight;
  const Wide<T>* inverse_rms;
  const T* dsum;  ///< The gradient of x from elsewhere, which dx includes; null for none.
  T* dx;          ///< Null if not wanted.
  int64_t size;
  bool zero_centered;
};

/// Which angles turn which token: those of token % angle_rows.
template <class T>
struct RotaryAngles {
  const Wide<T>* cos;  ///< (angle_rows, rotated)
  const Wide<T>* sin;
  int64_t angle_rows;
  int64_t rotated;
  bool interleaved;
};

/// Rotation of (tokens, heads, size).
template <class T>
struct RotaryCall {
  const T* x;
  T* y;
  RotaryAngles<T> angles;
  int64_t heads;
  int64_t size;
  bool backward;  ///< Turns the other way (the transposed map).
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

/// The largest head that the norm_rotary kernels take.
constexpr int64_t kMaxFusedHeadSize = 1024;

/// C (rows, cols) = A B, or C += A B if `add`: A is (rows, depth) of bfloat16, B (depth / 2, cols) of words of two that
/// follow each other along the depth, C float32; row-major and without gaps.
using PairProduct =
    void (*)(int64_t rows, int64_t cols, int64_t depth, const float* a, const float* b, float* c, bool add);

/// Causal attention of (batch, queries, query_heads, size) to (batch, keys, key_heads, size), the queries last; values
/// and output have value_size in place of size.
template <class T>
struct AttentionCall {
  const T* q;
  const T* k;
  const T* v;
  T* out;
  float* log_sum;             ///< (batch, query_heads, queries) log of the softmax's sum; null if not wanted.
  const int32_t* first_keys;  ///< (batch, keys): first key that the query at a position sees, rising; null for 0.
  const float* sinks;         ///< (query_heads) scores with value zero; null for none.
  int64_t batch, queries, keys, query_heads, key_heads, size, value_size;
  int64_t window;  ///< A query sees this many keys at most, its own the last.
  float scale;
  float softcap;                       ///< 0 for none.
  PairProduct pair_product = nullptr;  ///< For bfloat16 where kernels multiply pairs: instead of their own.
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
/// Heads are padded to whole register blocks of the widest instruction set.
constexpr int64_t padded_head_size(int64_t size) {
  return (size + 31) / 32 * 32;
}

/// Floats of scratch memory, 64-byte aligned, for a job of attention_forward or attention_backward.
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

/// The random bits of a rounding: 16 for each element of a tensor, a function of its index there alone. They come from
/// Philox4x32-10 with the key `seed`, and the counter's upper half is `stream`.
struct RoundingNoise {
  uint64_t seed;
  uint64_t stream;
  /// False: eight elements share a block (see noise_bits in optim/stochastic_rounding.cpp). True: element i has block i
  /// and takes the low half of its first word, as Triton's tl.randint(seed, i).
  bool block_an_element;
};

/// Elements whose noise is made at once; the unit of ranges below.
constexpr int64_t kNoiseGroup = 128;

/// A tensor's elements, of which element 0 lies at index `first` of the whole parameter.
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
  float grad_factor;                                           ///< What gradients are multiplied by.
  float decay;                                                 ///< 1 - lr * weight_decay
  float beta1, beta2, one_minus_beta1, one_minus_beta2;
  float step_size;    ///< lr / (1 - beta1^t)
  float root_factor;  ///< 1 / sqrt(1 - beta2^t)
  float eps;
};

/// A matrix (rows, columns) and where its numbers as float8 has them go, both without gaps.
template <class T>
struct Float8Call {
  const T* x;
  T* y;
  int64_t rows, columns;
};
/// Columns of a job of float8_columns.
constexpr int64_t kFloat8Columns = 64;

/// An operand of a product: `count` rows of a, or columns of b, `across` elements apart, each of `depth` elements that
/// lie `along` elements apart.
struct GemmOperand {
  const void* elements;
  int64_t across, along, count, depth;
};

/// A row-major matrix of float32 or bfloat16.
struct GemmPlace {
  void* words = nullptr;
  int64_t stride = 0;  ///< Of rows, in elements.
  bool is_bf16 = false;
};

/// to = from + a b, where a `from` without words is zero. a and b are packed in panels, [panel][depth][rows or
/// columns]: words of four bytes, one float32 or two bfloat16, the last panel filled up with zeros.
struct GemmCall {
  const float* a;
  const float* b;
  int64_t rows, columns;
  int64_t depth;  ///< In words.
  GemmPlace from, to;
};
/// Rows of a, at most, that are multiplied with one panel of b before the next.
constexpr int64_t kGemmUnitRows = 48;
/// The longest panels, in words: those rows fit into a level-2 cache of 256 KiB then, and sums are seldom left halfway.
constexpr int64_t kGemmDepth = 1024;

/// The product of matrices of one type.
struct GemmKernels {
  int64_t rows, columns;  ///< Of panels.
  /// Panels [first, last) of an operand.
  void (*pack)(const GemmOperand& operand, bool is_b, float* to, int64_t first, int64_t last);
  /// Unit i is panel i % P of b, of which there are P, with block i / P of the rows of a, which are cut into as few
  /// even blocks as possible.
  void (*multiply)(const GemmCall& call, int64_t first, int64_t last);
};

/// Rows of `sorted` that belong to tokens: choice c of token n is row inverse[n * choices + c].
template <class T>
struct TokenCopies {
  const T* sorted;   ///< (tokens * choices, size)
  const T* weights;  ///< (tokens, choices); null for ones.
  const int64_t* inverse;
  int64_t choices, size;
};

/// All kernels on elements of type T. Ranges are rows, tokens or elements, [first, last).
template <class T>
struct KernelTable {
  void (*rms_norm_forward)(const RmsNormForward<T>& call, int64_t first, int64_t last);
  /// Adds the rows' weight gradient to dweight (size) unless that is null.
  void (*rms_norm_backward)(const RmsNormBackward<T>& call, Wide<T>* dweight, int64_t first, int64_t last);
  void (*rotary)(const RotaryCall<T>& call, int64_t first, int64_t last);
  void (*norm_rotary_forward)(const NormRotaryForward<T>& call, int64_t first, int64_t last);
  void (*norm_rotary_backward)(const NormRotaryBackward<T>& call, Wide<T>* dweight, int64_t first, int64_t last);
  void (*silu_mul_forward)(const T* gate, const T* up, T* y, int64_t first, int64_t last);
  void (*silu_mul_backward)(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t first, int64_t last);
  /// Returns -log softmax(logits)[label]; if gradient_scale is not null, turns logits into its gradient times that.
  Wide<T> (*cross_entropy_row)(T* logits, int64_t size, int64_t label, const Wide<T>* gradient_scale);
  /// The sum of squares, in float64.
  double (*sum_of_squares)(const T* x, int64_t size);
  void (*scale)(T* x, double factor, int64_t size);
  /// The sum of the `count` rows (size) that stand at `places`.
  void (*sum_rows)(const T* rows, const int64_t* places, int64_t count, int64_t size, T* sum);
  /// The weighted sum of each token's rows, in out (tokens, size).
  void (*sum_copies)(const TokenCopies<T>& call, T* out, int64_t first, int64_t last);
  /// Gradients of the rows and of the weights, which must be there; either may be null.
  void (*sum_copies_backward)(
      const TokenCopies<T>& call, const T* dout, T* dsorted, T* dweights, int64_t first, int64_t last);
  /// Rounds to float8_e4m3fn (ops/float8.h), with a scale a row; over rows.
  void (*float8_rows)(const Float8Call<T>& call, int64_t first, int64_t last);
  /// The same with a scale a column; job i is the columns from i * kFloat8Columns on.
  void (*float8_columns)(const Float8Call<T>& call, int64_t first, int64_t last);
  /// Job `index` is key head index % key_heads of batch row index / key_heads. Null for float64.
  void (*attention_forward)(const AttentionCall<T>& call, float* scratch, int64_t index, int64_t part, int64_t parts);
  void (*attention_backward)(const AttentionBackwardCall<T>& call, float* scratch, int64_t index);
  /// Over the elements whose index in the whole parameter, divided by kNoiseGroup, lies in [first, last). Null for
  /// float64.
  void (*stochastic_round)(
      const T* x, Bf16* y, const RoundingRange& range, const RoundingNoise& noise, int64_t first, int64_t last);
  void (*stochastic_adamw)(const StochasticAdamWCall<T>& call, int64_t first, int64_t last);
};

/// Instruction sets, weakest first. The last is AVX-512 with products of pairs of bfloat16 (AVX512-BF16).
enum class Arch { generic, avx2, avx512, avx512_bf16 };

/// The best one that this build has and this CPU runs, unless an ArchScope of this thread asks for less.
Arch current_arch();

/// The table for an instruction set; T is float, double or Bf16. Inside a parallel region pass the arch of the thread
/// that started it.
template <class T>
const KernelTable<T>& kernels(Arch arch = current_arch());

/// Of float32 matrices.
const GemmKernels& gemm_kernels(Arch arch = current_arch());
/// Of bfloat16 matrices; null where this CPU has no instructions for them, or better ones (AMX), which are oneDNN's.
const GemmKernels* bf16_gemm_kernels(Arch arch = current_arch());

/// Whether attention in bfloat16 leaves its products to a PairProduct: on CPUs with AMX, and within a PairProductScope
/// if there is AVX512-BF16.
bool wants_pair_product(Arch arch = current_arch());

/// While it lives, attention on this thread leaves products of pairs to a PairProduct though the CPU has no AMX, so
/// that a test can run what CPUs with AMX run.
class PairProductScope {
 public:
  PairProductScope();
  ~PairProductScope();
  PairProductScope(const PairProductScope&) = delete;
  PairProductScope& operator=(const PairProductScope&) = delete;

 private:
  bool before_;
};

/// Limits current_arch() of this thread while it lives, so that a test can run every variant.
class ArchScope {
 public:
  explicit ArchScope(Arch at_most);
  ~ArchScope();
  ArchScope(const ArchScope&) = delete;
  ArchScope& operator=(const ArchScope&) = delete;

 private:
  Arch before_;
};

}  // namespace lehr::ops
