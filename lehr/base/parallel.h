// parallel_for on a team of threads per calling thread (lehr/base/thread_team.h).
//
// OpenMP's threads are not used: those of a region wait for each other, so all are idle while the system runs other
// work on the core of one. ATen's own operators use OpenMP as before.
#pragma once

#include <cstdint>

namespace lehr {

namespace detail {
void run_chunks(int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);
}

/// Calls `body(first, last)` on disjoint chunks that cover [begin, end): several per thread, so that threads that are
/// late or slow take fewer, and none smaller than `grain` except the last. Chunk borders depend only on the range, the
/// grain and the number of threads, so sums over chunks are reproducible. Any thread may take any chunk. Runs in place
/// inside another parallel region and if there is one chunk. Rethrows an exception of `body`.
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

/// Lowers the number of threads to what a container's quota grants. Without this, 64 threads share the 1.5 cores that a
/// quota may leave of a machine. OMP_NUM_THREADS takes precedence.
void limit_threads_to_quota();

/// From now on parallel_for and ATen run in place on this thread; other threads are not affected.
void run_in_place();

}  // namespace lehr
