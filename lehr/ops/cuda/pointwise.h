// Bodies without rows: sums of squares and scaling of many tensors, zeros for groups without rows.
#pragma once

#include "lehr/ops/cuda/portable.h"

namespace lehr::ops::cuda {

/// A piece of a list: elements [first, last) of `data`.
template <class T>
struct ListPiece {
  T* data;
  int64_t first;
  int64_t last;
  bool packed;
};

template <class T>
LEHR_HOST_DEVICE ListPiece<T> piece_of(const TensorList& list, int64_t index) {
  int64_t tensor = 0;
  for (int64_t step = TensorList::kMost / 2; step > 0; step /= 2) {
    if (tensor + step < list.tensors && list.first_piece[tensor + step] <= index) {
      tensor += step;
    }
  }
  const int64_t first = (index - list.first_piece[tensor]) * kListPiece;
  const int64_t count = list.count[tensor];
  T* const data = static_cast<T*>(list.data[tensor]);
  return {
      data,
      first,
      count - first < kListPiece ? count : first + kListPiece,
      (reinterpret_cast<uintptr_t>(data) & 15) == 0};
}

/// Sums the squares of one piece in float64, in which squares of float32 are exact and do not overflow.
template <class T>
struct SumSquaresOfPiece {
  TensorList list;
  double* sums;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const ListPiece<T> piece = piece_of<T>(list, index);
    double sum = 0;
#pragma unroll 4
    for (int64_t i = piece.first + group.rank() * width; i < piece.last; i += group.size() * width) {
      const Values<width> values = read_any<width>(piece.data, i, piece.last, piece.packed);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        sum += static_cast<double>(values.at[j]) * static_cast<double>(values.at[j]);
      }
    }
    sum = group.sum(sum);
    if (group.rank() == 0) {
      sums[index] = sum;
    }
  }
};

template <class T>
struct ScalePiece {
  TensorList list;
  const double* factor;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const float by = static_cast<float>(*factor);
    if (by == 1) {
      return;
    }
    const ListPiece<T> piece = piece_of<T>(list, index);
#pragma unroll 4
    for (int64_t i = piece.first + group.rank() * width; i < piece.last; i += group.size() * width) {
      Values<width> values = read_any<width>(piece.data, i, piece.last, piece.packed);
#pragma unroll
      for (int j = 0; j < width; ++j) {
        values.at[j] *= by;
      }
      write_any(piece.data, i, piece.last, piece.packed, values);
    }
  }
};

/// Writes zeros to piece index % pieces of group index / pieces, if the group has no rows.
template <class T>
struct ClearEmptyGroup {
  T* groups;
  const int32_t* ends;
  int64_t size;    ///< Elements per group, which is aligned to 16 bytes.
  int64_t pieces;  ///< Pieces of kListPiece elements per group.

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const int64_t at = index / pieces;
    const int64_t first = index % pieces * kListPiece;
    if (ends[at] != (at > 0 ? ends[at - 1] : 0)) {
      return;
    }
    const int64_t last = size - first < kListPiece ? size : first + kListPiece;
    const Values<width> zeros = {};
    for (int64_t i = first + group.rank() * width; i < last; i += group.size() * width) {
      write_any(groups + at * size, i, last, true, zeros);
    }
  }
};

/// Sums all parts, in one group.
struct SumAll {
  const double* parts;
  int64_t count;
  double* total;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t) const {
    double sum = 0;
    for (int64_t i = group.rank(); i < count; i += group.size()) {
      sum += parts[i];
    }
    sum = group.sum(sum);
    if (group.rank() == 0) {
      *total = sum;
    }
  }
};

}  // namespace lehr::ops::cuda
