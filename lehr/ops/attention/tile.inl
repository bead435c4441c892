// The 64-row tiles of attention: their matmuls, and packing from and to tensors.
//
// Tiles are float32, whatever the tensor's type. Rows are padded with zeros to a multiple of 64, and heads to
// padded_head_size, so that matmuls have no edges.
//
// If the CPU multiplies pairs of bfloat16, operands of bfloat16 attention are stored as words of two numbers that are
// adjacent along the depth of their matmul. This takes half the time with AVX512-BF16, and is the layout that AMX
// needs. Queries, keys, values and the output's gradient lose no bits by it (but subnormal numbers count as zero). P
// and dS are rounded to bfloat16, as in every implementation of FlashAttention.
#pragma once

#include "lehr/ops/attention/kernels.h"
#include "lehr/ops/kernels/vec.inl"
#ifdef LEHR_TILES
#include "lehr/ops/kernels/amx.inl"
#endif
#include "lehr/ops/matmul/pack.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

constexpr int64_t kTile = kAttentionTile;
// Rows of the register block, which is 2 vectors wide. With AVX2, 12 of 16 registers are sums.
constexpr int64_t kTileRows = LEHR_VECTOR_BYTES >= 64 ? 8 : (LEHR_VECTOR_BYTES >= 32 ? 6 : 4);

#ifdef LEHR_PAIRS
template <class T>
using TileWord = T;
#else
template <class T>
using TileWord = float;
#endif
template <class T>
constexpr int64_t kInWord = sizeof(float) / sizeof(TileWord<T>);

// The part of a tile of scores that is not masked: columns [first, past) of each row. Both are ascending.
struct Band {
  alignas(64) int32_t first[kTile], past[kTile];

  LEHR_INLINE void set(int64_t row, int64_t first_column, int64_t past_column) {
    const auto within = [](int64_t x) { return static_cast<int32_t>(x < 0 ? 0 : (x < kTile ? x : kTile)); };
    first[row] = within(first_column);
    past[row] = within(past_column);
  }
  /// Returns the band of the transposed tile.
  Band transposed() const {
    Band by_column;
    int32_t from = 0, to = 0;
    for (int64_t column = 0; column < kTile; ++column) {
      for (; from < kTile && past[from] <= column; ++from) {
      }
      for (; to < kTile && first[to] <= column; ++to) {
      }
      by_column.first[column] = from;
      by_column.past[column] = to;
    }
    return by_column;
  }
};

// The operand of a matmul that is a tile of scores. Its masked elements count as zeros in A and B, and are left as they
// are in C. The rows of the band are those of A or C, and the columns of B.
enum class Scores { none, in_a, in_b, in_c };

// Computes a block (kRows, 2 vectors) of C = factor A B, or C += A B, at c, from `depth` words. `cols` is the width of
// B and C, and `stride` that of A.
template <bool kAdd, int64_t kRows, class T>
LEHR_INLINE void multiply_block(
    const float* a, const float* b, float* c, int64_t cols, int64_t stride, int64_t depth, float factor) {
  constexpr const TileWord<T>* kWord = nullptr;
  constexpr int64_t lanes = kLanes<float>;
  FloatVec sum[kRows][2];
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r) {
    sum[r][0] = kAdd ? load(c + r * cols, All{}) : FloatVec{};
    sum[r][1] = kAdd ? load(c + r * cols + lanes, All{}) : FloatVec{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    const FloatVec b0 = load(b + k * cols, All{});
    const FloatVec b1 = load(b + k * cols + lanes, All{});
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRows; ++r) {
      const FloatVec word = repeat(a + r * stride + k);
      sum[r][0] = multiply_add(kWord, sum[r][0], word, b0);
      sum[r][1] = multiply_add(kWord, sum[r][1], word, b1);
    }
  }
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r) {
    store(c + r * cols, kAdd ? sum[r][0] : sum[r][0] * factor, All{});
    store(c + r * cols + lanes, kAdd ? sum[r][1] : sum[r][1] * factor, All{});
  }
}

// Computes the block of C at (row, column), as far as the band has it.
template <bool kAdd, Scores kScores, int64_t kRows, class T>
LEHR_INLINE void multiply_visible(
    const float* a,
    const float* b,
    float* c,
    int64_t row,
    int64_t column,
    int64_t cols,
    int64_t depth,
    float factor,
    const Band* band) {
  constexpr int64_t columns = 2 * kLanes<float>, words = kInWord<T>;
  int64_t from = 0, to = depth;
  if constexpr (kScores == Scores::in_c) {
    if (column >= band->past[row + kRows - 1] || column + columns <= band->first[row]) {
      return;
    }
  } else if constexpr (kScores == Scores::in_a) {
    from = band->first[row] / words;
    to = (band->past[row + kRows - 1] + words - 1) / words;
  } else if constexpr (kScores == Scores::in_b) {
    from = band->first[column] / words;
    to = (band->past[column + columns - 1] + words - 1) / words;
  }
  multiply_block<kAdd, kRows, T>(
      a + row * depth + from, b + from * cols + column, c + row * cols + column, cols, depth, to - from, factor);
}

#ifdef LEHR_TILES
using TileRegisters = TileScope;

// multiply_visible in tile registers, for a block of (kTileBlock, kTileBlock). Words of the depth are taken kTileSide
// at a time, which is right because masked scores are zeros.
template <bool kAdd, Scores kScores>
LEHR_INLINE void multiply_tiles(
    const float* a,
    const float* b,
    float* c,
    int64_t row,
    int64_t column,
    int64_t cols,
    int64_t depth,
    float factor,
    const Band* band) {
  constexpr int64_t kWords = 2 * kTileSide;  // numbers in kTileSide words
  int64_t from = 0, to = depth / kTileSide;
  if constexpr (kScores == Scores::in_c) {
    if (column >= band->past[row + kTileBlock - 1] || column + kTileBlock <= band->first[row]) {
      return;
    }
  } else if constexpr (kScores == Scores::in_a) {
    from = band->first[row] / kWords;
    to = (band->past[row + kTileBlock - 1] + kWords - 1) / kWords;
  } else if constexpr (kScores == Scores::in_b) {
    from = band->first[column] / kWords;
    to = (band->past[column + kTileBlock - 1] + kWords - 1) / kWords;
  }
  constexpr int64_t kWord = sizeof(float);
  float* const sums = c + row * cols + column;
  start_block<kAdd>(sums, cols * kWord, kTileSide * cols);
  add_to_block(
      {a + row * depth + from * kTileSide, kTileSide, kTileSide * depth, depth * kWord},
      {b + from * kTileSide * cols + column, kTileSide * cols, kTileSide, cols * kWord},
      to - from);
  store_block(sums, cols * kWord, kTileSide * cols);
  for (int64_t r = 0; factor != 1 && r < kTileBlock; ++r) {
    for (int64_t i = 0; i < kTileBlock; i += kLanes<float>) {
      store(sums + r * cols + i, load(sums + r * cols + i, All{}) * factor, All{});
    }
  }
}
#else
struct TileRegisters {
  TileRegisters() {}  // so that compilers do not warn of an unused variable
};
#endif

// C (rows, cols) = factor A B, or C += A B (factor 1). All are row-major. A (rows, depth) and B (depth, cols) consist
// of words: one number, or two if T is bfloat16 and the CPU multiplies pairs. rows and cols are multiples of 32.
template <bool kAdd, class T, Scores kScores = Scores::none>
void multiply(
    const float* a,
    const float* b,
    float* c,
    int64_t rows,
    int64_t cols,
    int64_t depth,
    const Band* band,
    float factor = 1) {
#ifdef LEHR_TILES
  static_assert(kInWord<T> == 2);
  for (int64_t n = 0; n < cols; n += kTileBlock) {
    for (int64_t m = 0; m < rows; m += kTileBlock) {
      multiply_tiles<kAdd, kScores>(a, b, c, m, n, cols, depth, factor, band);
    }
  }
#else
  constexpr int64_t lanes = kLanes<float>;
  constexpr int64_t kRest = 4;  // rows of the last blocks
  for (int64_t n = 0; n < cols; n += 2 * lanes) {
    int64_t m = 0;
    for (; m + kTileRows <= rows; m += kTileRows) {
      multiply_visible<kAdd, kScores, kTileRows, T>(a, b, c, m, n, cols, depth, factor, band);
    }
    for (; m + kRest <= rows; m += kRest) {
      multiply_visible<kAdd, kScores, kRest, T>(a, b, c, m, n, cols, depth, factor, band);
    }
    for (; m < rows; m += 2) {
      multiply_visible<kAdd, kScores, 2, T>(a, b, c, m, n, cols, depth, factor, band);
    }
  }
#endif
}

// Packs up to 64 rows of one head, `stride` elements apart, into a tile (64, padded), padded with zeros.
template <class T>
void pack_rows(const T* x, int64_t stride, int64_t rows, int64_t size, int64_t padded, float* to) {
  for (int64_t row = 0; row < kTile; ++row) {
    float* out = to + row * padded;
    if (row < rows) {
      for_each_vector<T>(
          size, [&](int64_t i, auto count) __attribute__((always_inline)) {
            store(out + i, load(x + row * stride + i, count), count);
          });
    }
    for (int64_t i = row < rows ? size : 0; i < padded; ++i) {
      out[i] = 0;
    }
  }
}

LEHR_INLINE float word_at(const float*, const float* from) {
  return *from;
}
// Returns a word of two numbers, which are bfloat16 already: truncation loses nothing.
LEHR_INLINE float word_at(const Bf16*, const float* from) {
  return bit_cast<float>(bit_cast<uint32_t>(from[0]) >> 16 | bit_cast<uint32_t>(from[1]));
}

// Transposes (rows, cols) to (cols, rows), or to (cols / 2, rows) of words of two numbers.
template <class T>
void transpose(const float* from, int64_t rows, int64_t cols, float* to) {
  constexpr const TileWord<T>* kWord = nullptr;
  if constexpr (kInWord<T> == 1) {
    constexpr int64_t lanes = kLanes<float>;
    for (int64_t row = 0; row < rows; row += lanes) {
      for (int64_t column = 0; column < cols; column += lanes) {
        FloatVec square[lanes];
#pragma GCC unroll 16
        for (int64_t i = 0; i < lanes; ++i) {
          square[i] = load(from + (row + i) * cols + column, All{});
        }
        transpose(square);
#pragma GCC unroll 16
        for (int64_t i = 0; i < lanes; ++i) {
          store(to + (column + i) * rows + row, square[i], All{});
        }
      }
    }
    return;
  }
  constexpr int64_t block = 8;
  for (int64_t row = 0; row < rows; row += block) {
    for (int64_t i = 0; i < cols / kInWord<T>; ++i) {
      for (int64_t r = 0; r < block; ++r) {
        to[i * rows + row + r] = word_at(kWord, from + (row + r) * cols + kInWord<T> * i);
      }
    }
  }
}

// Packs a tile (64, cols) into words of two adjacent rows, (32, cols), in place: the B of a matmul.
template <class T>
void words_of_rows(float* tile, int64_t cols) {
  if constexpr (kInWord<T> == 2) {
    for (int64_t row = 0; row < kTile; row += 2) {
      for (int64_t i = 0; i < cols; i += kLanes<float>) {
        const float* from = tile + row * cols + i;
        const UintVec low = lanes_of(narrow(load(from, All{}))), high = lanes_of(narrow(load(from + cols, All{})));
        store(tile + row / 2 * cols + i, bit_cast<FloatVec>(low | high << 16), All{});
      }
    }
  }
}

// Packs a row-major tile of `count` numbers into words of two adjacent columns: the A of a matmul. Returns the words:
// in `to`, which may be `tile`, or `tile` itself if a word is one number.
template <class T>
const float* words_of_columns(const float* tile, int64_t count, float* to) {
  if constexpr (kInWord<T> == 1) {
    return tile;
  } else {
    for (int64_t i = 0; i < count; i += kLanes<float>) {
      store(reinterpret_cast<Bf16*>(to) + i, load(tile + i, All{}), All{});
    }
    return to;
  }
}

// Writes rows of a tile, times factor, to a tensor whose rows are `stride` elements apart.
template <class T>
void unpack_rows(const float* from, int64_t padded, int64_t rows, int64_t size, float factor, T* to, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row) {
    for_each_vector<T>(
        size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          store(to + row * stride + i, load(from + row * padded + i, count) * factor, count);
        });
  }
}

}  // namespace
}  // namespace lehr::ops::LEHR_ARCH
