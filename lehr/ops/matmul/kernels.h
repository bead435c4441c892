// The kernels of matmuls on the CPU.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// An operand of a GEMM: `count` rows of a, or columns of b, with stride `across`. Each has `depth` elements with
/// stride `along`, which are packed into `words` words.
struct GemmOperand {
  const void* elements;
  int64_t across, along, count, depth, words;
};

/// A row-major matrix of float32 or bfloat16.
struct GemmPlace {
  void* words = nullptr;
  int64_t stride = 0;  ///< Between rows, in elements.
  bool is_bf16 = false;
};

/// to = from + a b, where a `from` without words is zero. a and b are packed in panels [panel][depth][rows or columns]
/// of four-byte words, each one float32 or a pair of bfloat16 (with AMX, see amx.inl). The last panel is padded with
/// zeros.
struct GemmCall {
  const float* a;
  const float* b;
  int64_t rows, columns;
  int64_t depth;  ///< Of the panels, in words.
  GemmPlace from, to;
};
/// Maximum number of rows of a that are multiplied by one panel of b before the next panel: with vectors, and with
/// tiles, which multiply so fast that reading b from the level-3 cache would limit them.
constexpr int64_t kGemmUnitRows = 48;
constexpr int64_t kTileUnitRows = 256;
/// Maximum depth of panels, in words: then a unit's rows fit a level-2 cache of 256 KiB (of 2 MiB with tiles), and few
/// matmuls need a second pass over their sums.
constexpr int64_t kGemmDepth = 1024;

/// GEMM kernels of one element type.
struct Gemm {
  int64_t rows, columns;  ///< Width of the panels of a, and of b.
  int64_t unit_rows;      ///< Maximum number of rows of a unit: a multiple of `rows`.
  int64_t per_word;       ///< Elements per word: 2 for pairs of bfloat16, else 1.
  int64_t step;           ///< Words to a multiple of which panels are padded with zeros along the depth.
  /// Packs panels [first, last) of an operand.
  void (*pack)(const GemmOperand& operand, bool is_b, float* to, int64_t first, int64_t last);
  /// Computes units [first, last). With P panels of b, unit i is panel i % P of b with block i / P of the rows of a,
  /// which are split into as few blocks as possible, of nearly equal size.
  void (*multiply)(const GemmCall& call, int64_t first, int64_t last);
};

/// For T float or Bf16. With AVX512-BF16 and AMX, those of Bf16 multiply pairs; else they widen to float32.
template <class T>
struct GemmKernels {
  static constexpr bool kHasPairs = sizeof(T) == sizeof(Bf16);
  static constexpr bool kHasTiles = kHasPairs;
  Gemm gemm;
};

}  // namespace lehr::ops
