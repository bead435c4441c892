// The 64-row tiles that attention works on: products, and the ways in and out of memory.
//
// Tiles are float32, whatever the type in memory. Rows are padded to a multiple of 64 and heads to padded_head_size with
// zeros, so that products have no ragged edges. "Transposed" tiles are [dim][64].
//
// Where the CPU multiplies pairs of bfloat16, tiles of bfloat16 attention become words of two numbers that follow each
// other along the depth of their product, for products in half the time. Queries, keys, values and the output's gradient
// lose no bit by that; weights and gradients of scores are rounded, as everywhere in flash attention.

constexpr int64_t kTile = kAttentionTile;
constexpr int64_t kTileRows = LEHR_VECTOR_BYTES >= 64 ? 8 : 4;  // of the register block; it is 2 vectors wide

#ifdef __AVX512BF16__
template <class T>
using TileWord = T;
#else
template <class T>
using TileWord = float;
#endif
template <class T>
constexpr int64_t kInWord = sizeof(float) / sizeof(TileWord<T>);

// C (64 rows, cols) = factor A B, or += A B. A(m, k) stands at a[m * kRow + k * kCol], B and C are row-major; along the
// depth they hold words (multiply_add).
template <int64_t kRow, int64_t kCol, bool kAdd, class Word = float>
void multiply(const float* a, const float* b, int64_t cols, float* c, int64_t depth, float factor = 1) {
  constexpr const Word* kWord = nullptr;
  constexpr int64_t lanes = kLanes<float>;
  for (int64_t n = 0; n < cols; n += 2 * lanes) {
    for (int64_t m = 0; m < kTile; m += kTileRows) {
      FloatVec sum[kTileRows][2];
      for (int64_t r = 0; r < kTileRows; ++r) {
        const float* from = c + (m + r) * cols + n;
        sum[r][0] = kAdd ? load(from, All{}) : FloatVec{};
        sum[r][1] = kAdd ? load(from + lanes, All{}) : FloatVec{};
      }
      const float* a_at = a + m * kRow;
      const float* b_at = b + n;
      for (int64_t k = 0; k < depth; ++k) {
        const FloatVec b0 = load(b_at, All{});
        const FloatVec b1 = load(b_at + lanes, All{});
        for (int64_t r = 0; r < kTileRows; ++r) {
          const FloatVec word = repeat(a_at + r * kRow);
          sum[r][0] = multiply_add(kWord, sum[r][0], word, b0);
          sum[r][1] = multiply_add(kWord, sum[r][1], word, b1);
        }
        a_at += kCol;
        b_at += cols;
      }
      for (int64_t r = 0; r < kTileRows; ++r) {
        float* to = c + (m + r) * cols + n;
        store(to, kAdd ? sum[r][0] : sum[r][0] * factor, All{});
        store(to + lanes, kAdd ? sum[r][1] : sum[r][1] * factor, All{});
      }
    }
  }
}

// factor A B^T of two transposed tiles of what is T in memory.
template <class T>
void multiply_transposed(const float* a, const float* b, float* c, int64_t padded, float factor) {
  multiply<1, kTile, false, TileWord<T>>(a, b, kTile, c, padded / kInWord<T>, factor);
}

// C (64, cols) += A B, for a (64, 64) after words_of_columns and b (64, cols) after words_of_rows.
template <class T>
void add_product(const float* a, const float* b, int64_t cols, float* c) {
  multiply<kTile / kInWord<T>, 1, true, TileWord<T>>(a, b, cols, c, kTile / kInWord<T>);
}

// C (64, cols) += A^T B, for both after words_of_rows.
template <class T>
void add_transposed_product(const float* a, const float* b, int64_t cols, float* c) {
  multiply<1, kTile, true, TileWord<T>>(a, b, cols, c, kTile / kInWord<T>);
}

// Up to 64 rows of one head, `stride` elements apart, zero-padded to (64, padded).
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
// Of two numbers of bfloat16.
LEHR_INLINE float word_at(const Bf16*, const float* from) {
  return bit_cast<float>(bit_cast<uint32_t>(from[0]) >> 16 | bit_cast<uint32_t>(from[1]));
}

// A tile of what is T in memory, (64, padded), to (padded, 64), or to (padded / 2, 64) pairs.
template <class T>
void transpose_rows(const float* from, int64_t padded, float* to) {
  constexpr const TileWord<T>* kWord = nullptr;
  constexpr int64_t block = 8;
  for (int64_t row = 0; row < kTile; row += block) {
    for (int64_t i = 0; i < padded / kInWord<T>; ++i) {
      for (int64_t r = 0; r < block; ++r) {
        to[i * kTile + row + r] = word_at(kWord, from + (row + r) * padded + kInWord<T> * i);
      }
    }
  }
}

// (64, cols) to words of two rows, (32, cols), in place.
template <class T>
void words_of_rows(float* tile, int64_t cols) {
  if constexpr (kInWord<T> == 2) {
    for (int64_t row = 0; row < kTile; row += 2) {
      for (int64_t i = 0; i < cols; i += kLanes<float>) {
        const float* from = tile + row * cols + i;
        const UintVec low = narrow_bits(load(from, All{})), high = narrow_bits(load(from + cols, All{}));
        store(tile + row / 2 * cols + i, bit_cast<FloatVec>(low | high << 16), All{});
      }
    }
  }
}

// (64, 64) to words of two columns, (64, 32). `to` may be `tile`.
template <class T>
void words_of_columns(const float* tile, float* to) {
  if constexpr (kInWord<T> == 2) {
    for (int64_t i = 0; i < kTile * kTile; i += kLanes<float>) {
      store(reinterpret_cast<Bf16*>(to) + i, load(tile + i, All{}), All{});
    }
  }
}

template <class T>
void unpack_rows(const float* from, int64_t padded, int64_t rows, int64_t size, float factor, T* to, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row) {
    for_each_vector<T>(
        size, [&](int64_t i, auto count) __attribute__((always_inline)) {
          store(to + row * stride + i, load(from + row * padded + i, count) * factor, count);
        });
  }
}
