// The global norm, and scaling of many tensors, on a GPU.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/global_norm/kernels.h"

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

namespace {
template <class T>
Status sums_of_squares(const TensorList& list, double* sums) {
  return Launch::blocks(SumSquaresOfPiece<T>{list, sums}, list.pieces, kMostThreads);
}

template <class T>
Status scale(const TensorList& list, const double* factor) {
  return Launch::blocks(ScalePiece<T>{list, factor}, list.pieces, kMostThreads);
}

template <class T>
constexpr GlobalNormLaunches<T> kGlobalNorm = {.sums_of_squares = sums_of_squares<T>, .scale = scale<T>};
const Registered kGlobalNormEntries(kGlobalNorm<float>, kGlobalNorm<Bf16>);

Status sum(const double* parts, int64_t count, double* total) {
  return Launch::blocks(SumAll{parts, count, total}, 1, kMostThreads);
}

constexpr SumLaunches kSum = {.sum = sum};
const Registered kSumEntry(kSum);
}  // namespace

}  // namespace lehr::ops::cuda
