// GEMM on packed panels (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication",
// https://doi.org/10.1145/1356052.1356053): a block of kGemmRows x kGemmColumns sums stays in registers while both
// panels are streamed once, from beginning to end.
//
// Panels consist of words: one float32, or two bfloat16 that are adjacent along the depth. Without instructions for
// bfloat16, packing widens each element to a float32, and the micro-kernel is that of float32.
#pragma once

#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/matmul/kernels.h"
#include "lehr/ops/matmul/pack.inl"

namespace lehr::ops::LEHR_ARCH {
namespace {

static_assert(kGemmUnitRows % kGemmRows == 0);

using GemmBlock = FloatVec[kGemmRows][2];

// The micro-kernel: sum += a b for panels a [depth][kGemmRows] and b [depth][kGemmColumns] of words of type T. Per step
// of the depth, one rank-1 update: a column of a times a row of b. AVX-512 has 32 registers: 24 sums, 2 for b, 1 for a.
template <class T>
LEHR_INLINE void add_panels(const float* a, const float* b, int64_t depth, GemmBlock& sum) {
  constexpr const T* kType = nullptr;
  constexpr int64_t kAhead = 16;  // words; panels come from the level-2 cache or beyond
  for (int64_t k = 0; k < depth; ++k) {
    if constexpr (LEHR_VECTOR_BYTES >= 64) {
      __builtin_prefetch(a + (k + kAhead) * kGemmRows);
      __builtin_prefetch(b + (k + kAhead) * kGemmColumns);
      __builtin_prefetch(b + (k + kAhead) * kGemmColumns + kLanes<float>);
    }
    const FloatVec b0 = load(b + k * kGemmColumns, All{});
    const FloatVec b1 = load(b + k * kGemmColumns + kLanes<float>, All{});
#pragma GCC unroll 16
    for (int64_t r = 0; r < kGemmRows; ++r) {
      const FloatVec factor = repeat(a + k * kGemmRows + r);
      sum[r][0] = multiply_add(kType, sum[r][0], factor, b0);
      sum[r][1] = multiply_add(kType, sum[r][1], factor, b1);
    }
  }
}

// Prefetches a block of the result, which is written at the end.
template <class To>
LEHR_INLINE void prefetch_block(const To* to, int64_t stride) {
#pragma GCC unroll 16
  for (int64_t r = 0; r < kGemmRows; ++r) {
    __builtin_prefetch(to + r * stride, 1);
    __builtin_prefetch(to + r * stride + kGemmColumns - 1, 1);
  }
}
template <class From>
LEHR_INLINE void add_block(const From* from, int64_t stride, GemmBlock& sum) {
#pragma GCC unroll 16
  for (int64_t r = 0; r < kGemmRows; ++r) {
    sum[r][0] += load(from + r * stride, All{});
    sum[r][1] += load(from + r * stride + kLanes<float>, All{});
  }
}
template <class To>
LEHR_INLINE void store_block(const GemmBlock& sum, To* to, int64_t stride) {
#pragma GCC unroll 16
  for (int64_t r = 0; r < kGemmRows; ++r) {
    store(to + r * stride, sum[r][0], All{});
    store(to + r * stride + kLanes<float>, sum[r][1], All{});
  }
}

// Computes one block (kGemmRows, kGemmColumns) of the result at (row, column).
template <class T>
LEHR_INLINE void multiply_panels(const GemmCall& call, const float* a, const float* b, int64_t row, int64_t column) {
  constexpr int64_t kAhead = 64;  // words before the end; prefetched earlier, the result would be evicted by b
  const int64_t early = call.depth > kAhead ? call.depth - kAhead : 0;
  const int64_t from_at = row * call.from.stride + column;
  const int64_t to_at = row * call.to.stride + column;
  GemmBlock sum = {};
  add_panels<T>(a, b, early, sum);
  if (call.to.is_bf16) {
    prefetch_block(static_cast<const Bf16*>(call.to.words) + to_at, call.to.stride);
  } else {
    prefetch_block(static_cast<const float*>(call.to.words) + to_at, call.to.stride);
  }
  add_panels<T>(a + early * kGemmRows, b + early * kGemmColumns, call.depth - early, sum);
  if (call.from.words == nullptr) {
  } else if (call.from.is_bf16) {
    add_block(static_cast<const Bf16*>(call.from.words) + from_at, call.from.stride, sum);
  } else {
    add_block(static_cast<const float*>(call.from.words) + from_at, call.from.stride, sum);
  }
  if (call.to.is_bf16) {
    store_block(sum, static_cast<Bf16*>(call.to.words) + to_at, call.to.stride);
  } else {
    store_block(sum, static_cast<float*>(call.to.words) + to_at, call.to.stride);
  }
}

LEHR_INLINE float one_of(const GemmPlace& place, int64_t at) {
  return place.is_bf16 ? load_one(static_cast<const Bf16*>(place.words) + at)
                       : static_cast<const float*>(place.words)[at];
}

// Computes a block at the edge, of which only (rows, columns) exist: the whole block in a buffer, then a copy.
template <class T>
LEHR_INLINE void multiply_edge(
    const GemmCall& call, const float* a, const float* b, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  alignas(64) float block[kGemmRows * kGemmColumns];
  GemmCall whole = call;
  whole.from = {};
  whole.to = {block, kGemmColumns, false};
  multiply_panels<T>(whole, a, b, 0, 0);
  for (int64_t r = row; r < row + rows; ++r) {
    for (int64_t i = column; i < column + columns; ++i) {
      float sum = block[(r - row) * kGemmColumns + i - column];
      if (call.from.words != nullptr) {
        sum += one_of(call.from, r * call.from.stride + i);
      }
      const int64_t at = r * call.to.stride + i;
      if (call.to.is_bf16) {
        store_one(static_cast<Bf16*>(call.to.words) + at, sum);
      } else {
        static_cast<float*>(call.to.words)[at] = sum;
      }
    }
  }
}

template <class T>
void gemm_multiply(const GemmCall& call, int64_t first, int64_t last) {
  for_each_block(call, kGemmUnitRows, kGemmRows, kGemmColumns, first, last, [&](const GemmBlockAt& at) {
    if (at.rows < kGemmRows || at.columns < kGemmColumns) {
      multiply_edge<T>(call, at.a, at.b, at.row, at.column, at.rows, at.columns);
    } else {
      multiply_panels<T>(call, at.a, at.b, at.row, at.column);
    }
  });
}

template <int64_t kPerWord>
struct WordOf {
  using type = float;
};
template <>
struct WordOf<2> {
  using type = Bf16;
};

template <class T, int64_t kPerWord>
constexpr GemmKernels<T> kGemm = {
    {.rows = kGemmRows,
     .columns = kGemmColumns,
     .unit_rows = kGemmUnitRows,
     .per_word = kPerWord,
     .step = 1,
     .pack = gemm_pack<T, kPerWord>,
     .multiply = gemm_multiply<typename WordOf<kPerWord>::type>}};

}  // namespace

LEHR_KERNELS(kGemm<float, 1>)
LEHR_KERNELS(kGemm<Bf16, 1>)
LEHR_PAIR_KERNELS(kGemm<Bf16, 2>)

}  // namespace lehr::ops::LEHR_ARCH
