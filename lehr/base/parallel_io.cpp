#include "lehr/base/parallel_io.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "lehr/base/parallel.h"
#include "lehr/base/torch.h"

namespace lehr {

void parallel_io(int64_t threads, int64_t count, const std::function<void(int64_t)>& work) {
  if (std::min(threads, count) <= 1) {
    const at::NoGradGuard no_grad;
    for (int64_t i = 0; i < count; ++i) {
      work(i);
    }
    return;
  }
  std::atomic<int64_t> next = 0;
  std::mutex mutex;
  int64_t failed = count;
  std::exception_ptr exception;
  const auto run = [&] {
    run_in_place();
    const at::NoGradGuard no_grad;
    for (int64_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          exception = std::current_exception();
        }
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int64_t i = 0; i < std::min(threads, count); ++i) {
      others.emplace_back(run);
    }
  }
  if (exception) {
    std::rethrow_exception(exception);
  }
}

}  // namespace lehr
