// The kernels of the gradient of an embedding, and of the check of ids.
#pragma once

#include "lehr/ops/cuda/slot.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// On the CPU.
template <class T>
struct EmbeddingKernels {
  /// Writes the sum of the `count` rows (size) with indices `places`, in their order.
  void (*sum_rows)(const T* rows, const int64_t* places, int64_t count, int64_t size, T* sum);
};

namespace cuda {
/// On a GPU.
struct KnownIdsLaunches {
  static constexpr KernelId kId = {.name = "known_ids", .element = 0, .version = 1};
  /// Sets known[i] to ids[i], or to 0 if that is outside of [0, size). Records the first such id: note[0] is its
  /// position + 1, and note[1] the id, unless note[0] is already set.
  Status (*known_ids)(const int64_t* ids, int64_t count, int64_t size, int64_t* known, int64_t* note);
};
}  // namespace cuda

}  // namespace lehr::ops
