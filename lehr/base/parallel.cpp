#include "lehr/base/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>

// Entry points of libgomp's stable interface, resolved to the wheel's library.
extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_thread_num();
int omp_get_num_threads();
int omp_in_parallel();
void omp_set_num_threads(int threads);
}

// libgomp is not compiled with the thread sanitizer, which must therefore be told that a region's threads start after
// the caller's last write, and that the caller continues after their writes.
#if defined(__SANITIZE_THREAD__)
#define LEHR_THREAD_SANITIZER
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LEHR_THREAD_SANITIZER
#endif
#endif
#ifdef LEHR_THREAD_SANITIZER
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace lehr {

namespace {
struct Region {
  int64_t begin, end, chunk;
  void (*body)(void*, int64_t, int64_t);
  void* context;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;
};

void happens_before([[maybe_unused]] Region& region) {
#ifdef LEHR_THREAD_SANITIZER
  __tsan_release(&region);
#endif
}
void happens_after([[maybe_unused]] Region& region) {
#ifdef LEHR_THREAD_SANITIZER
  __tsan_acquire(&region);
#endif
}

void run_region(void* data) {
  auto& region = *static_cast<Region*>(data);
  happens_after(region);
  const int64_t stride = region.chunk * omp_get_num_threads();
  try {
    for (int64_t first = region.begin + region.chunk * omp_get_thread_num(); first < region.end; first += stride) {
      region.body(region.context, first, std::min(first + region.chunk, region.end));
    }
  } catch (...) {
    if (!region.failed.test_and_set()) {
      region.error = std::current_exception();
    }
  }
  happens_before(region);
}
}  // namespace

int num_threads() {
  return at::get_num_threads();
}

void run_in_place() {
  at::get_num_threads();  // initializes the thread count of a new thread, which happens only once
  omp_set_num_threads(1);
}

void detail::run_chunks(
    int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
  if (begin >= end) {
    return;
  }
  const int64_t count = end - begin;
  int64_t threads = omp_in_parallel() ? 1 : num_threads();
  threads = std::min(threads, std::max<int64_t>(1, count / std::max<int64_t>(grain, 1)));
  if (threads <= 1) {
    body(context, begin, end);
    return;
  }
  Region region{begin, end, (count + threads - 1) / threads, body, context, ATOMIC_FLAG_INIT, nullptr};
  happens_before(region);
  GOMP_parallel(run_region, &region, static_cast<unsigned>(threads), 0);
  happens_after(region);
  if (region.error) {
    std::rethrow_exception(region.error);
  }
}

}  // namespace lehr
