// The check of ids on a GPU.
#include "lehr/ops/cuda/kernel.h"
#include "lehr/ops/embedding/kernels.h"

namespace lehr::ops::cuda {

/// Checks all ids in one group.
struct KnownIds {
  const int64_t* ids;
  int64_t count;
  int64_t size;
  int64_t* known;
  int64_t* note;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t) const {
    int64_t first = count;  // this thread's first id outside of the vocabulary
#pragma unroll 4
    for (int64_t i = group.rank(); i < count; i += group.size()) {
      const int64_t id = ids[i];
      const bool inside = id >= 0 && id < size;
      known[i] = inside ? id : 0;
      first = inside || first < count ? first : i;
    }
    // The minimum over all threads, in two halves, because float32 has only 24 bits.
    constexpr int kBits = 20;
    const float upper = static_cast<float>(first >> kBits);
    const float lower = static_cast<float>(first & ((1 << kBits) - 1));
    const float least = -group.max(-upper);
    const float rest = -group.max(upper == least ? -lower : -static_cast<float>(1 << kBits));
    const int64_t found = (static_cast<int64_t>(least) << kBits) + static_cast<int64_t>(rest);
    if (group.rank() == 0 && found < count && note[0] == 0) {
      note[0] = found + 1;
      note[1] = ids[found];
    }
  }
};

namespace {
Status known_ids(const int64_t* ids, int64_t count, int64_t size, int64_t* known, int64_t* note) {
  return Launch::blocks(KnownIds{ids, count, size, known, note}, 1, kMostThreads);
}

constexpr KnownIdsLaunches kKnownIds = {.known_ids = known_ids};
const Registered kKnownIdsEntry(kKnownIds);
}  // namespace

}  // namespace lehr::ops::cuda
