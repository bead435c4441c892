// Bodies that round a matrix to float8_e4m3fn (float8.h): with a scale per row, with a scale per column and then
// transposed, or both. Rows take one pass. Scales of columns need all rows first, so the pass over rows also computes
// the largest elements of columns, and a second pass rounds and transposes.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/float8/kernels.h"

namespace lehr::ops::cuda {

/// The scale of a row or column, and its inverse.
struct Float8Scale {
  float factor;
  float inverse;  ///< NaN if an element is not finite.
};

/// Returns the largest power of two that keeps `largest` within 448 = 0.875 * 2^9.
LEHR_HOST_DEVICE Float8Scale float8_scale(float largest) {
  const bool finite = largest < __builtin_huge_valf();
  const uint32_t bits = __builtin_bit_cast(uint32_t, finite ? fmaxf(largest, 1e-12f) : 1.0f);
  const int exponent = static_cast<int>(bits >> 23) - 126;  // largest = m 2^exponent with 0.5 <= m < 1
  const int power = 9 - exponent - ((bits & 0x7fffff) > 0x600000 ? 1 : 0);
  const auto power_of_two = [](int e) { return __builtin_bit_cast(float, static_cast<uint32_t>(e + 127) << 23); };
  return {power_of_two(power), finite ? power_of_two(-power) : __builtin_nanf("")};
}

/// Rounds to nearest, ties to even. Values above 464 become NaN or 448.
LEHR_HOST_DEVICE uint8_t to_e4m3(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return static_cast<uint8_t>(pair);
#else
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t rounded;
  if (magnitude >= 0x43f00000) {  // 480
    rounded = 0x7f;
  } else if (magnitude < 0x3c800000) {  // 2^-6: multiples of 2^-9
    rounded = static_cast<uint32_t>(rintf(__builtin_bit_cast(float, magnitude) * 512.0f));
  } else {
    rounded = ((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120u << 3);
  }
  return static_cast<uint8_t>(rounded | (bits >> 24 & 0x80));
#endif
}

/// `kCount` bytes that are written in one access.
template <int kCount>
struct alignas(kCount) Float8Pack {
  uint8_t at[kCount];
};

/// Rounds the rows index, index + groups, ..., and finds the largest elements of their columns [first, last).
template <class T>
struct RoundRows {
  Float8Operand<T> call;
  float* parts;  ///< (groups, last - first): the largest elements; null if not requested.
  bool round;  ///< Round the rows; `held` elements of each are then kept in scratch memory, behind the largest elements
               ///< of columns.
  int64_t groups;
  int64_t first;
  int64_t last;  ///< All columns, if rows are rounded.
  int64_t held;
  bool packed;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const int64_t stride = group.size() * width;
    const int64_t mine = group.rank() * width;  // each thread has its own columns, so no barrier is needed
    const int64_t size = last - first;
    float* const largest = static_cast<float*>(group.scratch());
    T* const row_in_scratch = reinterpret_cast<T*>(largest + (parts != nullptr ? scratch_columns<T>(size) : 0));
    for (int64_t i = mine; parts != nullptr && i < size; i += stride) {
#pragma unroll
      for (int j = 0; j < width; ++j) {
        largest[i + j] = 0;
      }
    }
    for (int64_t row = index; row < call.rows; row += groups) {
      const T* const x = call.x + row * call.columns + first;
      float most = 0;
#pragma unroll 2
      for (int64_t i = mine; i < size; i += stride) {
        const Values<width> values = read_any<width>(x, i, size, packed);
        if (round) {
          write(row_in_scratch, i, held, values);
        }
#pragma unroll
        for (int j = 0; j < width; ++j) {
          const float magnitude = fabsf(values.at[j]);
          const float seen = magnitude < __builtin_huge_valf() ? magnitude : __builtin_huge_valf();  // NaN, too
          most = fmaxf(most, seen);
          if (parts != nullptr) {
            largest[i + j] = fmaxf(largest[i + j], seen);
          }
        }
      }
      if (!round) {
        continue;
      }
      const Float8Scale scale = float8_scale(group.max(most));
      if (group.rank() == 0) {
        call.row_scales[row] = scale.inverse;
      }
      uint8_t* const to = call.by_row + row * call.columns;
#pragma unroll 2
      for (int64_t i = mine; i < size; i += stride) {
        const Values<width> values =
            i < held ? read<width>(row_in_scratch, i, held) : read_any<width>(x, i, size, packed);
        Float8Pack<width> bytes;
#pragma unroll
        for (int j = 0; j < width; ++j) {
          bytes.at[j] = to_e4m3(values.at[j] * scale.factor);
        }
        if (packed) {
          *reinterpret_cast<Float8Pack<width>*>(to + i) = bytes;
          continue;
        }
        for (int j = 0; j < width && i + j < size; ++j) {
          to[i + j] = bytes.at[j];
        }
      }
    }
    for (int64_t i = mine; parts != nullptr && i < size; i += stride) {
      for (int j = 0; j < width && i + j < size; ++j) {
        parts[index * size + i + j] = largest[i + j];
      }
    }
  }
};

/// Computes the scales of a group's columns, from the largest elements in all parts.
struct ScaleColumns {
  const float* parts;  ///< (count, size)
  int64_t count;
  int64_t size;
  float* scales;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    const int64_t column = index * group.size() + group.rank();
    if (column >= size) {
      return;
    }
    float most = 0;
#pragma unroll 4
    for (int64_t part = 0; part < count; ++part) {
      most = fmaxf(most, parts[part * size + column]);
    }
    scales[column] = float8_scale(most).inverse;
  }
};

/// Rounds a tile of the matrix by the scales of its columns, and transposes it.
template <class T>
struct RoundColumns {
  static constexpr int64_t kRows = 128;
  static constexpr int64_t kColumns = 64;
  static constexpr int64_t kThreads = 256;
  static constexpr int64_t kStride = kRows + 4;  // of columns in scratch memory; avoids bank conflicts
  static constexpr int64_t kScratch = kColumns * kStride;
  Float8Operand<T> call;
  bool packed;

  static constexpr int64_t tiles_down(int64_t rows) { return (rows + kRows - 1) / kRows; }

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const int64_t first_row = index % tiles_down(call.rows) * kRows;
    const int64_t first_column = index / tiles_down(call.rows) * kColumns;
    uint8_t* const tile = static_cast<uint8_t*>(group.scratch());
#pragma unroll 2
    for (int64_t pack = group.rank(); pack < kRows * kColumns / width; pack += group.size()) {
      const int64_t r = pack / (kColumns / width);
      const int64_t c = pack % (kColumns / width) * width;
      if (first_row + r >= call.rows || first_column + c >= call.columns) {
        continue;
      }
      const T* const x = call.x + (first_row + r) * call.columns;
      const Values<width> values = read_any<width>(x, first_column + c, call.columns, packed);
      for (int j = 0; j < width && first_column + c + j < call.columns; ++j) {
        // A power of two: its inverse has the opposite exponent. In a column with an element that is not finite any
        // scale will do.
        const float scale = call.column_scales[first_column + c + j];
        const uint32_t bits = __builtin_bit_cast(uint32_t, scale);
        tile[(c + j) * kStride + r] = to_e4m3(values.at[j] * __builtin_bit_cast(float, (254u << 23) - bits));
      }
    }
    group.sync();
    constexpr int64_t kBytes = 16;
    for (int64_t pack = group.rank(); pack < kColumns * (kRows / kBytes); pack += group.size()) {
      const int64_t c = pack / (kRows / kBytes);
      const int64_t r = pack % (kRows / kBytes) * kBytes;
      if (first_column + c >= call.columns || first_row + r >= call.rows) {
        continue;
      }
      const uint8_t* const from = tile + c * kStride + r;
      uint8_t* const to = call.by_column + (first_column + c) * call.rows + first_row + r;
      if (call.rows % kBytes == 0) {
        Pack<float> words;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          words.at[j] = reinterpret_cast<const float*>(from)[j];
        }
        store(reinterpret_cast<float*>(to), words);
        continue;
      }
      for (int64_t j = 0; j < kBytes && first_row + r + j < call.rows; ++j) {
        to[j] = from[j];
      }
    }
  }
};

namespace {
template <class T>
Status round_rows(const Float8Operand<T>& call, int64_t first, int64_t last, bool round, bool largest, bool packed) {
  const int64_t of_columns = largest ? scratch_columns<T>(last - first) * static_cast<int64_t>(sizeof(float)) : 0;
  const int64_t held = round ? held_of_row<T>(last - first, Launch::most_scratch() - of_columns) : 0;
  const int64_t groups = largest ? float8_parts(call.rows) : call.rows;
  const int64_t packs = power_of_two_for((last - first + kPack<T> - 1) / kPack<T>);
  const int64_t threads = packs < 32 ? 32 : packs > kMostThreads ? kMostThreads : packs;
  const RoundRows<T> body{call, largest ? call.parts : nullptr, round, groups, first, last, held, packed};
  return Launch::blocks(body, groups, threads, of_columns + held * static_cast<int64_t>(sizeof(T)));
}

template <class T>
Status to_float8(const Float8Operand<T>& call) {
  const bool packed = call.columns % kPack<T> == 0 && aligned(call.x, call.by_row);
  const int64_t parts = float8_parts(call.rows);
  const int64_t of_columns = scratch_columns<T>(call.columns) * static_cast<int64_t>(sizeof(float));
  const bool at_once = call.by_column != nullptr && of_columns <= Launch::most_scratch();
  Status status = nullptr;
  if (call.by_row != nullptr || at_once) {
    status = round_rows(call, 0, call.columns, call.by_row != nullptr, at_once, packed);
  }
  if (call.by_column == nullptr) {
    return status;
  }
  // Columns that do not fit into scratch memory together are searched in several passes.
  const int64_t most = at_once ? call.columns : Launch::most_scratch() / static_cast<int64_t>(sizeof(float)) / 64 * 64;
  for (int64_t first = 0; status == nullptr && first < call.columns; first += most) {
    const int64_t last = first + most < call.columns ? first + most : call.columns;
    if (!at_once) {
      status = round_rows(call, first, last, false, true, packed);
    }
    if (status == nullptr) {
      const ScaleColumns scales{call.parts, parts, last - first, call.column_scales + first};
      status = Launch::blocks(scales, (last - first + kTileThreads - 1) / kTileThreads, kTileThreads);
    }
  }
  if (status != nullptr) {
    return status;
  }
  using Tile = RoundColumns<T>;
  const int64_t tiles = Tile::tiles_down(call.rows) * ((call.columns + Tile::kColumns - 1) / Tile::kColumns);
  return Launch::blocks(Tile{call, packed}, tiles, Tile::kThreads, Tile::kScratch);
}

template <class T>
constexpr Float8Launches<T> kFloat8 = {.to_float8 = to_float8<T>};
const Registered kFloat8Entries(kFloat8<float>, kFloat8<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda
