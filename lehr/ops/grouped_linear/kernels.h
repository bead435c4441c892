// The kernel of grouped matmuls on a GPU.
#pragma once

#include "lehr/ops/cuda/slot.h"

namespace lehr::ops {
namespace cuda {
/// Elements of a group that one group of threads clears.
constexpr int64_t kGroupPiece = 1 << 16;

/// On a GPU.
template <class T>
struct GroupedLinearLaunches {
  static constexpr KernelId kId = {.name = "grouped_linear", .element = sizeof(T), .version = 1};
  /// Writes zeros to each group of (groups, size) elements that has no rows; the rows of a group end at ends[group].
  Status (*clear_empty_groups)(T* groups, const int32_t* ends, int64_t count, int64_t size);
};
}  // namespace cuda

}  // namespace lehr::ops
