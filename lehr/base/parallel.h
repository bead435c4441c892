// parallel_for over the threads that ATen uses.
//
// ATen's own parallel_for is a header with OpenMP pragmas, so with a compiler whose OpenMP is not the one in the wheel
// it would run on one thread or bring a second thread pool. This one calls the wheel's OpenMP runtime by name.
#pragma once

#include <cstdint>

namespace lehr {

namespace detail {
void run_chunks(int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);
}

/// Calls `body(first, last)` on disjoint chunks that cover [begin, end), at most one a thread and none smaller than
/// `grain` (but the last). Chunk borders depend on the range, the grain and the number of threads alone, so sums over
/// chunks are repeatable. Inside another parallel region, and for one chunk, it runs in place. An exception of `body`
/// is rethrown here.
template <class Body>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  detail::run_chunks(
      begin,
      end,
      grain,
      [](void* context, int64_t first, int64_t last) { (*static_cast<const Body*>(context))(first, last); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

/// The number of threads that parallel_for uses, which is ATen's.
int num_threads();

/// From now on parallel_for and ATen run in place when this thread calls them; other threads do as before.
void run_in_place();

}  // namespace lehr
