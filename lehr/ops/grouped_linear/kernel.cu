// Zeros for groups without rows, on a GPU.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/grouped_linear/kernels.h"

namespace lehr::ops::cuda {

/// Writes zeros to piece index % pieces of group index / pieces, if the group has no rows.
template <class T>
struct ClearEmptyGroup {
  T* groups;
  const int32_t* ends;
  int64_t size;    ///< Elements per group, which is aligned to 16 bytes.
  int64_t pieces;  ///< Pieces of kGroupPiece elements per group.

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    constexpr int width = kPack<T>;
    const int64_t at = index / pieces;
    const int64_t first = index % pieces * kGroupPiece;
    if (ends[at] != (at > 0 ? ends[at - 1] : 0)) {
      return;
    }
    const int64_t last = size - first < kGroupPiece ? size : first + kGroupPiece;
    const Values<width> zeros = {};
    for (int64_t i = first + group.rank() * width; i < last; i += group.size() * width) {
      write_any(groups + at * size, i, last, true, zeros);
    }
  }
};

namespace {
template <class T>
Status clear_empty_groups(T* groups, const int32_t* ends, int64_t count, int64_t size) {
  const int64_t pieces = (size + kGroupPiece - 1) / kGroupPiece;
  return Launch::blocks(ClearEmptyGroup<T>{groups, ends, size, pieces}, count * pieces, kTileThreads);
}

template <class T>
constexpr GroupedLinearLaunches<T> kGroupedLinear = {.clear_empty_groups = clear_empty_groups<T>};
const Registered kGroupedLinearEntries(kGroupedLinear<float>, kGroupedLinear<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda
