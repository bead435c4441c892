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

// Computes a block (kRows, 2 vectors) of C = factor A B, or C += A B, at c. `cols` is the width of B and C.
template <bool kAdd, int64_t kRows, class T>
LEHR_INLINE void multiply_block(const float* a, const float* b, float* c, int64_t cols, int64_t depth, float factor) {
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
      const FloatVec word = repeat(a + r * depth + k);
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

// C (rows, cols) = factor A B, or C += A B (factor 1). All are row-major. A (rows, depth) and B (depth, cols) consist
// of words: one number, or two if T is bfloat16 and the CPU multiplies pairs. rows and cols are multiples of 32.
template <bool kAdd, class T>
void multiply(
    PairProduct product,
    const float* a,
    const float* b,
    float* c,
    int64_t rows,
    int64_t cols,
    int64_t depth,
    float factor = 1) {
  constexpr int64_t lanes = kLanes<float>;
  if (kInWord<T> == 2 && product != nullptr) {
    product(rows, cols, depth * kInWord<T>, a, b, c, kAdd);
    for (int64_t i = 0; factor != 1 && i < rows * cols; i += lanes) {
      store(c + i, load(c + i, All{}) * factor, All{});
    }
    return;
  }
  constexpr int64_t kRest = 4;  // rows of the last blocks
  for (int64_t n = 0; n < cols; n += 2 * lanes) {
    int64_t m = 0;
    for (; m + kTileRows <= rows; m += kTileRows) {
      multiply_block<kAdd, kTileRows, T>(a + m * depth, b + n, c + m * cols + n, cols, depth, factor);
    }
    for (; m + kRest <= rows; m += kRest) {
      multiply_block<kAdd, kRest, T>(a + m * depth, b + n, c + m * cols + n, cols, depth, factor);
    }
    for (; m < rows; m += 2) {
      multiply_block<kAdd, 2, T>(a + m * depth, b + n, c + m * cols + n, cols, depth, factor);
    }
  }
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
