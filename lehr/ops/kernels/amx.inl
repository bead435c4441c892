// AMX's tile registers (Intel SDM, "Advanced Matrix Extensions").
#pragma once

#include <immintrin.h>

#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

/// Rows of a tile register, and words per row: 16 rows of 64 bytes.
constexpr int64_t kTileSide = 16;
constexpr int64_t kTileRowBytes = kTileSide * sizeof(float);
/// Rows and columns of the sums that stay in registers: 2 x 2 tiles.
constexpr int64_t kTileBlock = 2 * kTileSide;

// While an object exists, each of this thread's eight tile registers has kTileSide rows of kTileSide words.
class TileScope {
 public:
  TileScope() {
    Shapes shapes;
    for (int i = 0; i < kCount; ++i) {
      shapes.row_bytes[i] = kTileRowBytes;
      shapes.rows[i] = kTileSide;
    }
    // gcc 12 declares that LDTILECFG reads 8 bytes, and would drop the stores to the other 56.
    asm volatile("" : : "m"(shapes));
    _tile_loadconfig(&shapes);
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  static constexpr int kCount = 8;
  // The operand of LDTILECFG.
  struct alignas(64) Shapes {
    uint8_t palette = 1;
    uint8_t first_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
};

// gcc 12 declares tile loads without their memory operand, and could move earlier stores behind them.
LEHR_INLINE void complete_stores() {
  asm volatile("" : : : "memory");
}

// The words of a matmul's operand for one block: kTileSide along the depth, by kTileBlock rows of a or columns of b.
struct TileOperand {
  const float* words;
  int64_t step;       // words from here to the next kTileSide along the depth
  int64_t second;     // words to the second tile
  int64_t row_bytes;  // between rows of a tile
};

// Sets the sums of a block to 0, or to those at `sums`.
template <bool kAdd>
LEHR_INLINE void start_block(const float* sums, int64_t row_bytes, int64_t second_rows) {
  complete_stores();
  if constexpr (kAdd) {
    _tile_loadd(0, sums, row_bytes);
    _tile_loadd(1, sums + kTileSide, row_bytes);
    _tile_loadd(2, sums + second_rows, row_bytes);
    _tile_loadd(3, sums + second_rows + kTileSide, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}

// Adds a b for `steps` steps of kTileSide words. A row of a tile of b holds one word of each of kTileSide columns.
LEHR_INLINE void add_to_block(const TileOperand& a, const TileOperand& b, int64_t steps) {
  const float* left = a.words;
  const float* right = b.words;
  for (int64_t step = 0; step < steps; ++step, left += a.step, right += b.step) {
    _tile_loadd(4, left, a.row_bytes);
    _tile_loadd(6, right, b.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + b.second, b.row_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + a.second, a.row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

LEHR_INLINE void store_block(float* sums, int64_t row_bytes, int64_t second_rows) {
  _tile_stored(0, sums, row_bytes);
  _tile_stored(1, sums + kTileSide, row_bytes);
  _tile_stored(2, sums + second_rows, row_bytes);
  _tile_stored(3, sums + second_rows + kTileSide, row_bytes);
}

}  // namespace
}  // namespace lehr::ops::LEHR_ARCH
