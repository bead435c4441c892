// Packing of GEMM operands into panels of words (kernel.inl). A word is kPerWord elements: a float32, a bfloat16
// widened to float32, or a pair of bfloat16.
#pragma once

#include "lehr/ops/kernels/vec.inl"
#include "lehr/ops/matmul/kernels.h"

namespace lehr::ops::LEHR_ARCH {
namespace {

constexpr int64_t kGemmRows = LEHR_VECTOR_BYTES >= 64 ? 12 : (LEHR_VECTOR_BYTES >= 32 ? 6 : 4);
constexpr int64_t kGemmColumns = 2 * kLanes<float>;

// A block of the result at (row, column), of which (rows, columns) exist, and its panels.
struct GemmBlockAt {
  const float* a;
  const float* b;
  int64_t row, column, rows, columns;
};

// Calls f(GemmBlockAt) for each block of units [first, last): see Gemm::multiply. Consecutive units share a block of a,
// which stays in the level-2 cache while panels of b are streamed.
template <class F>
LEHR_INLINE void for_each_block(
    const GemmCall& call, int64_t unit_rows, int64_t width_a, int64_t width_b, int64_t first, int64_t last, F&& f) {
  const auto min = [](int64_t x, int64_t y) { return x < y ? x : y; };
  const int64_t column_panels = (call.columns + width_b - 1) / width_b;
  const int64_t row_panels = (call.rows + width_a - 1) / width_a;
  const int64_t row_blocks = (call.rows + unit_rows - 1) / unit_rows;
  for (int64_t unit = first; unit < last; ++unit) {
    const int64_t column = unit % column_panels * width_b;
    const int64_t block = unit / column_panels;  // blocks differ by at most one panel, so that units cost the same
    const int64_t last_panel = row_panels * (block + 1) / row_blocks;
    for (int64_t panel = row_panels * block / row_blocks; panel < last_panel; ++panel) {
      const int64_t row = panel * width_a;
      f(GemmBlockAt{
          call.a + row * call.depth,
          call.b + column * call.depth,
          row,
          column,
          min(width_a, call.rows - row),
          min(width_b, call.columns - column)});
    }
  }
}

template <int... kIndex>
struct Indices {};
template <int kCount, int... kIndex>
struct CountTo : CountTo<kCount - 1, kCount - 1, kIndex...> {};
template <int... kIndex>
struct CountTo<0, kIndex...> {
  using type = Indices<kIndex...>;
};
using EachLane = CountTo<static_cast<int>(kLanes<float>)>::type;

// Swaps the odd groups of kStep lanes of x with the even ones of y.
template <int kStep, int... kIndex>
LEHR_INLINE void swap_groups(FloatVec& x, FloatVec& y, Indices<kIndex...>) {
  constexpr int lanes = static_cast<int>(kLanes<float>);
  const FloatVec low = __builtin_shufflevector(x, y, ((kIndex & kStep) != 0 ? lanes + kIndex - kStep : kIndex)...);
  y = __builtin_shufflevector(x, y, ((kIndex & kStep) != 0 ? lanes + kIndex : kIndex + kStep)...);
  x = low;
}
template <int kStep>
LEHR_INLINE void swap_groups_of_all(FloatVec* v) {
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLanes<float>; ++i) {
    if ((i & kStep) == 0) {
      swap_groups<kStep>(v[i], v[i + kStep], EachLane{});
    }
  }
}
// Transposes a square of words in registers, one vector per row: swaps groups of 1, 2, 4, ... lanes.
LEHR_INLINE void transpose(FloatVec* v) {
  swap_groups_of_all<1>(v);
  swap_groups_of_all<2>(v);
  if constexpr (kLanes<float> >= 8) {
    swap_groups_of_all<4>(v);
  }
  if constexpr (kLanes<float> >= 16) {
    swap_groups_of_all<8>(v);
  }
}

// Returns word k of an operand's row or column: element k, or elements 2 k and 2 k + 1, with zero for a missing one.
template <int64_t kPerWord, class T>
LEHR_INLINE float word_at(const T* x, int64_t k, int64_t along, int64_t depth) {
  if constexpr (kPerWord == 1) {
    return load_one(x + k * along);
  } else {
    const uint32_t low = x[2 * k * along].bits;
    const uint32_t high = 2 * k + 1 < depth ? x[(2 * k + 1) * along].bits : 0;
    return bit_cast<float>(low | high << 16);
  }
}

// Packs word k of kWidth adjacent rows or columns (across == 1).
template <int64_t kWidth, int64_t kPerWord, class T>
LEHR_INLINE void pack_neighbours(const T* x, int64_t k, int64_t along, float* to) {
  if constexpr (sizeof(T) == sizeof(float)) {
    __builtin_memcpy(to, x + k * along, sizeof(float) * kWidth);
  } else if constexpr (kPerWord == 1) {
    const T* from = x + k * along;
    for (int64_t i = 0; i < kWidth; ++i) {
      to[i] = bit_cast<float>(static_cast<uint32_t>(from[i].bits) << 16);
    }
  } else {
    const T* low = x + 2 * k * along;
    const T* high = low + along;
    for (int64_t i = 0; i < kWidth; ++i) {
      to[i] = bit_cast<float>(static_cast<uint32_t>(low[i].bits) | static_cast<uint32_t>(high[i].bits) << 16);
    }
  }
}

// Returns adjacent words, from element *x on.
template <int64_t kPerWord, class T>
LEHR_INLINE FloatVec words_from(const T* x) {
  if constexpr (kPerWord == 1) {
    return load(x, All{});
  } else {
    return read<FloatVec>(x, All{});
  }
}

// Packs words [0, whole) of a full panel with contiguous depth (along == 1), by transposing squares of words in
// registers. `whole` is a multiple of the lanes.
template <int64_t kWidth, int64_t kPerWord, class T>
void pack_squares(const T* x, int64_t across, int64_t whole, float* to) {
  constexpr int64_t lanes = kLanes<float>;
  constexpr int64_t kLast = kWidth % lanes;  // rows of the last square, if it is not full
  for (int64_t k = 0; k < whole; k += lanes) {
    for (int64_t first = 0; first < kWidth; first += lanes) {
      const bool full = first + lanes <= kWidth;
      FloatVec square[lanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < lanes; ++i) {
        square[i] = full || i < kLast ? words_from<kPerWord>(x + (first + i) * across + k * kPerWord) : FloatVec{};
      }
      transpose(square);
#pragma GCC unroll 16
      for (int64_t i = 0; i < lanes; ++i) {
        __builtin_memcpy(
            to + (k + i) * kWidth + first, &square[i], sizeof(float) * static_cast<unsigned>(full ? lanes : kLast));
      }
    }
  }
}

// Packs one panel of kWidth rows or columns, of which `count` exist; the others become zeros.
template <int64_t kWidth, int64_t kPerWord, class T>
void pack_panel(const T* x, int64_t across, int64_t along, int64_t count, int64_t depth, float* to) {
  const int64_t words = (depth + kPerWord - 1) / kPerWord;
  int64_t k = 0;
  if (count == kWidth && along == 1) {
    k = depth / kPerWord / kLanes<float> * kLanes<float>;
    pack_squares<kWidth, kPerWord>(x, across, k, to);
  } else if (count == kWidth && across == 1) {
    for (; k < depth / kPerWord; ++k) {
      pack_neighbours<kWidth, kPerWord>(x, k, along, to + k * kWidth);
    }
  }
  for (; k < words; ++k) {
    for (int64_t i = 0; i < kWidth; ++i) {
      to[k * kWidth + i] = i < count ? word_at<kPerWord>(x + i * across, k, along, depth) : 0;
    }
  }
}

template <class T, int64_t kPerWord>
void gemm_pack(const GemmOperand& operand, bool is_b, float* to, int64_t first, int64_t last) {
  const int64_t width = is_b ? kGemmColumns : kGemmRows;
  for (int64_t panel = first; panel < last; ++panel) {
    const int64_t start = panel * width;
    const int64_t count = operand.count - start < width ? operand.count - start : width;
    const T* x = static_cast<const T*>(operand.elements) + start * operand.across;
    float* out = to + start * operand.words;
    if (is_b) {
      pack_panel<kGemmColumns, kPerWord>(x, operand.across, operand.along, count, operand.depth, out);
    } else {
      pack_panel<kGemmRows, kPerWord>(x, operand.across, operand.along, count, operand.depth, out);
    }
  }
}

}  // namespace

}  // namespace lehr::ops::LEHR_ARCH
