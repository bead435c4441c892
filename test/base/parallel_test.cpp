// Loops on a team of threads: each element once, in chunks that do not depend on timing.
#include "lehr/base/parallel.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "lehr/base/thread_team.h"

extern "C" int MKL_Get_Max_Threads() __attribute__((weak));  // null without MKL

namespace lehr {
namespace {

using Chunks = std::set<std::pair<int64_t, int64_t>>;

class ParallelFor : public testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(4); }
  void TearDown() override { at::set_num_threads(before_); }

  static Chunks chunks_of(int64_t begin, int64_t end, int64_t grain) {
    std::mutex mutex;
    Chunks chunks;
    parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
      const std::lock_guard lock(mutex);
      chunks.emplace(first, last);
    });
    return chunks;
  }

 private:
  const int before_ = at::get_num_threads();
};

TEST_F(ParallelFor, VisitsEachElementOnce) {
  for (const int64_t size : {0, 1, 2, 15, 16, 17, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(size));
    parallel_for(0, size, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        ++visits[static_cast<size_t>(i)];
      }
    });
    EXPECT_THAT(visits, testing::Each(testing::Eq(1))) << size;
  }
}

TEST_F(ParallelFor, CutsARangeInTheSameWayEveryTime) {
  const Chunks chunks = chunks_of(5, 1005, 1);
  EXPECT_EQ(chunks.size(), 16U);  // four per thread
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(chunks_of(5, 1005, 1), chunks);
  }
}

TEST_F(ParallelFor, MakesNoChunkSmallerThanTheGrainButTheLast) {
  EXPECT_THAT(chunks_of(0, 100, 30), testing::SizeIs(3));
  EXPECT_EQ(chunks_of(0, 100, 51), (Chunks{{0, 100}}));
}

TEST_F(ParallelFor, RethrowsAnErrorAndStaysUsable) {
  const auto fails = [] {
    parallel_for(0, 100, 1, [](int64_t first, int64_t) {
      if (first == 0) {
        throw std::runtime_error("of the first chunk");
      }
    });
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(fails(), std::runtime_error);
    EXPECT_EQ(chunks_of(0, 100, 1).rbegin()->second, 100);
  }
}

// at::set_num_threads, which a fixture calls, sets MKL's own number for all threads.
TEST_F(ParallelFor, RunsMklInPlace) {
  if (MKL_Get_Max_Threads == nullptr) {
    GTEST_SKIP() << "LibTorch without MKL";
  }
  EXPECT_EQ(MKL_Get_Max_Threads(), 4);
  std::atomic<int> most = 0;
  parallel_for(0, 16, 1, [&](int64_t, int64_t) { most = std::max<int>(most, MKL_Get_Max_Threads()); });
  EXPECT_EQ(most, 1);
  EXPECT_EQ(MKL_Get_Max_Threads(), 4);
}

TEST_F(ParallelFor, RunsNestedLoopsAndATenInPlace) {
  std::atomic<int> others = 0;
  parallel_for(0, 16, 1, [&](int64_t, int64_t) {
    const auto self = std::this_thread::get_id();
    others += num_threads() != 1;
    parallel_for(0, 100, 1, [&](int64_t, int64_t) { others += std::this_thread::get_id() != self; });
  });
  EXPECT_EQ(others, 0);
  EXPECT_EQ(num_threads(), 4);
}

TEST_F(ParallelFor, FollowsAChangedNumberOfThreads) {
  for (const int threads : {4, 1, 6, 2}) {
    at::set_num_threads(threads);
    EXPECT_EQ(chunks_of(0, 1000, 1).size(), threads == 1 ? 1U : static_cast<size_t>(4 * threads));
  }
}

TEST_F(ParallelFor, ServesSeveralCallingThreads) {
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum = 0;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        parallel_for(0, 100, 1, [&](int64_t first, int64_t last) { sum += last - first; });
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(sum, 4 * 200 * 100);
}

// GoogleTest forks this process, which has no workers then.
TEST_F(ParallelFor, WorksInAForkedProcess) {
  GTEST_FLAG_SET(death_test_style, "fast");
  chunks_of(0, 1000, 1);
  EXPECT_EXIT(::_exit(chunks_of(0, 1000, 1).size() == 16 ? 7 : 8), testing::ExitedWithCode(7), "");
}

TEST(ThreadTeam, EndsALoopWithoutAWorkerThatDoesNotArrive) {
  static std::atomic<bool> held = true;
  ThreadTeam team([](int) { held.wait(true); });
  int chunks = 0;
  team.run(
      8, 2, [](void* count, int64_t) { ++*static_cast<int*>(count); }, &chunks);
  EXPECT_EQ(chunks, 8);
  held = false;
  held.notify_all();
}

TEST(AdaptiveSpin, EndsAtOnceIfTheConditionHolds) {
  AdaptiveSpin spin;
  EXPECT_TRUE(spin.poll([] { return true; }));
}

TEST(AdaptiveSpin, GivesUpAfterAShortTime) {
  using namespace std::chrono;
  AdaptiveSpin spin;
  const auto begin = steady_clock::now();
  EXPECT_FALSE(spin.poll([] { return false; }));
  EXPECT_LT(steady_clock::now() - begin, 5s);  // a millisecond, but for other work on the machine
}

}  // namespace
}  // namespace lehr
