// Matmuls of the chunks of the gated delta rule: small matrices in scratch memory, float32 or float64, without edges.
#pragma once

#include "lehr/ops/gated_delta_rule/kernels.h"
#include "lehr/ops/kernels/vec.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

// Rows of the register block, which is 2 vectors wide. All numbers of rows are multiples of 8.
constexpr int64_t kDeltaRows = LEHR_VECTOR_BYTES >= 64 ? 8 : 4;

// The part of the left matrix that is not zero: in row i, columns up to i (lower), or from i on (upper).
enum class DeltaPart { all, lower, upper };

// c = keep * from + a b. a(i, k) is a[i * a_row + k * a_column]; b and c have contiguous rows, whose width is a
// multiple of 32. With `lower_result`, columns of c after its diagonal block are left alone.
template <class A>
struct DeltaProduct {
  const A* a;
  int64_t a_row, a_column;
  const A* b;
  int64_t b_stride;
  A* c;
  int64_t c_stride;
  int64_t rows, columns, depth;
  DeltaPart part = DeltaPart::all;
  bool lower_result = false;
  A keep = 0;
  const A* from = nullptr;  // with the stride of c; not read if keep is 0
};

template <class A>
LEHR_INLINE void delta_block(const DeltaProduct<A>& p, int64_t row, int64_t column, int64_t begin, int64_t end) {
  constexpr int64_t lanes = kLanes<A>;
  Vec<A> sum[kDeltaRows][2] = {};
  if (p.keep != 0) {
#pragma GCC unroll 16
    for (int64_t r = 0; r < kDeltaRows; ++r) {
      const A* from = p.from + (row + r) * p.c_stride + column;
      sum[r][0] = load(from, All{}) * p.keep;
      sum[r][1] = load(from + lanes, All{}) * p.keep;
    }
  }
  const A* a = p.a + row * p.a_row;
  const A* b = p.b + column;
  for (int64_t k = begin; k < end; ++k) {
    const Vec<A> b0 = load(b + k * p.b_stride, All{});
    const Vec<A> b1 = load(b + k * p.b_stride + lanes, All{});
#pragma GCC unroll 16
    for (int64_t r = 0; r < kDeltaRows; ++r) {
      const Vec<A> factor = splat(a[r * p.a_row + k * p.a_column]);
      sum[r][0] += factor * b0;
      sum[r][1] += factor * b1;
    }
  }
#pragma GCC unroll 16
  for (int64_t r = 0; r < kDeltaRows; ++r) {
    A* to = p.c + (row + r) * p.c_stride + column;
    store(to, sum[r][0], All{});
    store(to + lanes, sum[r][1], All{});
  }
}

template <class A>
void delta_product(const DeltaProduct<A>& p) {
  constexpr int64_t width = 2 * kLanes<A>;
  for (int64_t column = 0; column < p.columns; column += width) {
    for (int64_t row = 0; row < p.rows; row += kDeltaRows) {
      if (p.lower_result && column >= row + kDeltaRows) {
        continue;
      }
      const int64_t begin = p.part == DeltaPart::upper ? row : 0;
      const int64_t end = p.part == DeltaPart::lower && row + kDeltaRows < p.depth ? row + kDeltaRows : p.depth;
      delta_block(p, row, column, begin, end);
    }
  }
}

// Transposes `from` (rows, columns) to `to` (columns, to_stride); rows are a multiple of 8.
template <class A>
void delta_transpose(const A* from, int64_t rows, int64_t columns, A* to, int64_t to_stride) {
  for (int64_t row = 0; row < rows; row += 8) {
    for (int64_t i = 0; i < columns; ++i) {
      for (int64_t r = 0; r < 8; ++r) {
        to[i * to_stride + row + r] = from[(row + r) * columns + i];
      }
    }
  }
}

// Solves (I - a) x = x in place, where a (rows, kDeltaChunk) is strictly lower triangular and x (rows, width); with
// kTransposed, (I - a^T) x = x.
template <bool kTransposed, class A>
void delta_solve(const A* a, A* x, int64_t rows, int64_t width) {
  constexpr int64_t kStride = kDeltaChunk;
  for (int64_t block = 0; block < rows; block += kDeltaRows) {
    const int64_t m = kTransposed ? rows - kDeltaRows - block : block;
    const A* own = a + m * kStride + m;  // the diagonal block
    const A* rest = kTransposed ? a + (m + kDeltaRows) * kStride + m : a + m * kStride;
    if (block > 0) {
      delta_product<A>(
          {.a = rest,
           .a_row = kTransposed ? 1 : kStride,
           .a_column = kTransposed ? kStride : 1,
           .b = kTransposed ? x + (m + kDeltaRows) * width : x,
           .b_stride = width,
           .c = x + m * width,
           .c_stride = width,
           .rows = kDeltaRows,
           .columns = width,
           .depth = block,
           .keep = 1,
           .from = x + m * width});
    }
    for (int64_t i = 0; i < width; i += kLanes<A>) {
      Vec<A> row[kDeltaRows];
#pragma GCC unroll 16
      for (int64_t r = 0; r < kDeltaRows; ++r) {
        const int64_t at = kTransposed ? kDeltaRows - 1 - r : r;
        row[at] = load(x + (m + at) * width + i, All{});
#pragma GCC unroll 16
        for (int64_t other = 0; other < r; ++other) {
          const int64_t by = kTransposed ? kDeltaRows - 1 - other : other;
          row[at] += row[by] * splat(kTransposed ? own[by * kStride + at] : own[at * kStride + by]);
        }
        store(x + (m + at) * width + i, row[at], All{});
      }
    }
  }
}

}  // namespace
}  // namespace lehr::ops::LEHR_ARCH
