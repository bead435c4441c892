// The 64-row tiles that attention works on: products, and the ways in and out of memory.
//
// All tiles are float32, whatever the type in memory. Rows are padded to a multiple of 64 and heads to
// padded_head_size with zeros, so that products have no ragged edges. "Transposed" tiles are [dim][64].

constexpr int64_t kTile = kAttentionTile;
constexpr int64_t kTileRows = LEHR_VECTOR_BYTES >= 64 ? 8 : 4;  // of the register block; it is 2 vectors wide

// C (64 or more rows in steps of 64, cols) = or += A B. A(m, k) stands at a[m * kRow + k * kCol], B and C are
// row-major.
template <int64_t kRow, int64_t kCol, bool kAdd>
void multiply(const float* a, const float* b, int64_t cols, float* c, int64_t depth) {
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
          const FloatVec factor = splat(a_at[r * kRow]);
          sum[r][0] += factor * b0;
          sum[r][1] += factor * b1;
        }
        a_at += kCol;
        b_at += cols;
      }
      for (int64_t r = 0; r < kTileRows; ++r) {
        float* to = c + (m + r) * cols + n;
        store(to, sum[r][0], All{});
        store(to + lanes, sum[r][1], All{});
      }
    }
  }
}

// Up to 64 rows of one head, `stride` elements apart, times `factor`, zero-padded to (64, padded).
template <class T>
void pack_rows(const T* x, int64_t stride, int64_t rows, int64_t size, int64_t padded, float factor, float* to) {
  for (int64_t row = 0; row < kTile; ++row) {
    float* out = to + row * padded;
    if (row < rows) {
      for_each_vector<T>(
          size, [&](int64_t i, auto count) __attribute__((always_inline)) {
            store(out + i, load(x + row * stride + i, count) * factor, count);
          });
    }
    for (int64_t i = row < rows ? size : 0; i < padded; ++i) {
      out[i] = 0;
    }
  }
}

// (64, padded) to (padded, 64).
void transpose_rows(const float* from, int64_t padded, float* to) {
  constexpr int64_t block = 8;
  for (int64_t row = 0; row < kTile; row += block) {
    for (int64_t i = 0; i < padded; ++i) {
      for (int64_t r = 0; r < block; ++r) {
        to[i * kTile + row + r] = from[(row + r) * padded + i];
      }
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
