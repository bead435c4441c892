// parallel_io: several threads for work that mostly waits.
#include "lehr/base/parallel_io.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <string>
#include <vector>

#include "lehr/base/parallel.h"
#include "lehr/base/torch.h"

namespace lehr {
namespace {

TEST(ParallelIo, CallsEveryIndexOnceOnAnyNumberOfThreads) {
  for (const int64_t threads : {1, 2, 7}) {
    for (const int64_t count : {0, 1, 5, 100}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      parallel_io(threads, count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      for (const auto& number : calls) {
        EXPECT_EQ(number, 1) << threads << " threads, " << count << " calls";
      }
    }
  }
}

TEST(ParallelIo, RunsCallsThatWaitForEachOtherConcurrently) {
  std::latch all(4);
  parallel_io(4, 4, [&](int64_t /*index*/) { all.arrive_and_wait(); });
}

TEST(ParallelIo, ThrowsTheExceptionOfTheSmallestIndexAndBeginsNoFurtherCall) {
  for (const int64_t threads : {1, 3}) {
    std::atomic<int> calls = 0;
    try {
      parallel_io(threads, 1000, [&](int64_t i) {
        ++calls;
        throw std::runtime_error("call " + std::to_string(i));
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "call 0");
    }
    EXPECT_LE(calls, threads);
  }
}

TEST(ParallelIo, DisablesGradModeAndUsesOneThreadPerCallAndRestoresBoth) {
  const int threads = at::get_num_threads();
  std::atomic<int> wrong = 0;
  parallel_io(3, 30, [&](int64_t /*index*/) { wrong += num_threads() != 1 || at::GradMode::is_enabled() ? 1 : 0; });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(at::get_num_threads(), threads);
  EXPECT_TRUE(at::GradMode::is_enabled());
}

}  // namespace
}  // namespace lehr
