// parallel_for on ATen's thread pool.
//
// ATen's own parallel_for is a header with OpenMP pragmas. With a compiler whose OpenMP differs from the wheel's, it
// would run on one thread or create a second thread pool. This one calls the wheel's OpenMP runtime by name.
#pragma once

#include <cstdint>

namespace lehr {

namespace detail {
void run_chunks(int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);
}

/// Calls `body(first, last)` on disjoint chunks that cover [begin, end): at most one chunk per thread, none smaller
/// than `grain` except the last. Chunk borders depend only on the range, the grain and the number of threads, so sums
/// over chunks are reproducible. Runs in place inside another parallel region and if there is one chunk. Rethrows an
/// exception of `body`.
template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  detail::run_chunks(
      begin,
      end,
      grain,
      [](void* context, int64_t first, int64_t last) { (*static_cast<const Body*>(context))(first, last); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

/// The number of threads that parallel_for and ATen use.
int num_threads();

/// From now on parallel_for and ATen run in place on this thread; other threads are not affected.
void run_in_place();

}  // namespace lehr
