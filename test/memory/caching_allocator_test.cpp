// The caching allocator: freed blocks are kept for the next request, up to the peak of the bytes in use.
#include "lehr/memory/caching_allocator.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/torch.h"
#include "lehr/meter/memory_meter.h"

namespace lehr {
namespace {
constexpr size_t kMiB = size_t{1} << 20;

TEST(CachedBlocks, ServesTheNextRequestOfTheSameSizeWithoutMapping) {
  CachedBlocks blocks;
  void* const first = blocks.allocate(5 * kMiB);
  void* const second = blocks.allocate(3 * kMiB);
  ASSERT_TRUE(blocks.free(first));
  ASSERT_TRUE(blocks.free(second));
  for (int step = 0; step < 10; ++step) {
    void* const again = blocks.allocate(3 * kMiB);
    EXPECT_EQ(again, second);
    void* const other = blocks.allocate(5 * kMiB);
    EXPECT_EQ(other, first);
    blocks.free(other);
    blocks.free(again);
  }
  EXPECT_EQ(blocks.figures().mapped_ever, 8 * kMiB);
  EXPECT_EQ(blocks.figures().kept, 8 * kMiB);
}

TEST(CachedBlocks, ReturnsTheOldestBlockToTheSystemRatherThanExceedThePeak) {
  CachedBlocks blocks;
  void* const oldest = blocks.allocate(4 * kMiB);  // the new block below takes pages of it
  void* const newer = blocks.allocate(6 * kMiB);
  blocks.free(oldest);
  blocks.free(newer);
  void* const other = blocks.allocate(3 * kMiB);  // 10 MiB are kept, and the peak was 10 MiB
  EXPECT_EQ(blocks.figures().kept, 6 * kMiB);
  EXPECT_EQ(blocks.allocate(6 * kMiB), newer);
  EXPECT_EQ(blocks.figures().peak, 10 * kMiB);
  blocks.free(newer);
  blocks.free(other);
}

TEST(CachedBlocks, NeverHoldsMoreThanThePeakAndTheSpareBytes) {
  constexpr size_t kSpare = 8 * kMiB;
  CachedBlocks blocks(kSpare);
  std::mt19937_64 random(7);
  std::vector<void*> used;
  size_t in_use = 0;
  for (int i = 0; i < 4000; ++i) {
    if (!used.empty() && random() % 64 < used.size()) {
      std::swap(used[random() % used.size()], used.back());
      EXPECT_TRUE(blocks.free(used.back()));
      used.pop_back();
    } else {
      const size_t bytes = kMiB + random() % (3 * kMiB);
      used.push_back(blocks.allocate(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(used.back()) % 64, 0);
    }
    const auto figures = blocks.figures();
    ASSERT_LE(figures.used + figures.wasted + figures.kept, figures.peak + kSpare);
    in_use = std::max(in_use, figures.used);
  }
  EXPECT_EQ(blocks.figures().peak, in_use);
  for (void* block : used) {
    EXPECT_TRUE(blocks.free(block));
  }
  EXPECT_EQ(blocks.figures().used, 0);
}

// The first half of a step takes blocks of other sizes than the second, as with activations and gradients.
TEST(CachedBlocks, ReusePagesForBlocksOfOtherSizes) {
  CachedBlocks blocks;
  const auto half = [&](size_t count, size_t bytes) {
    std::vector<void*> used;
    for (size_t i = 0; i < count; ++i) {
      auto* const block = static_cast<char*>(blocks.allocate(bytes));
      std::memset(block, 7, bytes);
      used.push_back(block);
    }
    for (void* const block : used) {
      EXPECT_TRUE(blocks.free(block));
    }
  };
  half(6, 4 * kMiB);
  half(2, 12 * kMiB);
  EXPECT_EQ(blocks.figures().mapped_ever, 24 * kMiB);
  for (int step = 0; step < 50; ++step) {
    half(3, 8 * kMiB);
    half(1, 24 * kMiB);
    half(6, 4 * kMiB);
    EXPECT_LE(blocks.figures().used + blocks.figures().kept, 24 * kMiB);
  }
  EXPECT_EQ(blocks.figures().mapped_ever, 24 * kMiB);
  // Before the huge pages of a block move, the small pages behind the last of them are returned to the system.
  half(2, 11 * kMiB);
  half(3, 8 * kMiB);
  EXPECT_LE(blocks.figures().mapped_ever, 30 * kMiB);
}

TEST(CachedBlocks, ServeASmallerRequestWhileTheWasteIsAtMostTheSpareBytes) {
  CachedBlocks blocks(kMiB);
  void* const small = blocks.allocate(2 * kMiB);
  void* const large = blocks.allocate(5 * kMiB);
  blocks.free(small);
  blocks.free(large);
  EXPECT_EQ(blocks.allocate(4 * kMiB), large);
  EXPECT_EQ(blocks.figures().used, 4 * kMiB);
  EXPECT_EQ(blocks.figures().wasted, kMiB);
  void* const other = blocks.allocate(kMiB);
  EXPECT_NE(other, small) << "1 MiB is wasted already";
  blocks.free(large);
  EXPECT_EQ(blocks.allocate(kMiB), small);
  EXPECT_EQ(blocks.figures().peak, 7 * kMiB);
  blocks.free(small);
  blocks.free(other);
  CachedBlocks others(kMiB);
  others.free(others.allocate(3 * kMiB));
  void* const much_less = others.allocate(2 * kMiB);
  EXPECT_EQ(others.figures().wasted, 0) << "less than four fifths";
  others.free(much_less);
}

TEST(CachedBlocks, ReturnOnlyTheExcessToTheSystem) {
  CachedBlocks blocks;
  blocks.free(blocks.allocate(64 * kMiB));
  void* const small = blocks.allocate(kMiB);
  EXPECT_EQ(blocks.figures().kept, 62 * kMiB) << "a whole huge page is the least";
  EXPECT_EQ(blocks.figures().mapped_ever, 65 * kMiB);
  blocks.free(small);
}

TEST(CachedBlocks, MoveSmallPagesLikeHugeOnes) {
  CachedBlocks blocks;
  void* const small = blocks.allocate(7 * kMiB / 4);
  std::memset(small, 7, 7 * kMiB / 4);
  blocks.free(small);
  auto* const large = static_cast<char*>(blocks.allocate(7 * kMiB / 2));  // a huge page and 1.5 MiB
  EXPECT_EQ(blocks.figures().mapped_ever, 7 * kMiB / 4 + kHugePage);
  EXPECT_EQ(large[0], 0) << "fresh";
  EXPECT_EQ(large[kHugePage], 7);
  EXPECT_EQ(large[7 * kMiB / 2 - 1], 7);
  EXPECT_EQ(blocks.figures().kept, 0);
  blocks.free(large);
}

TEST(CachedBlocks, RoundUpByAtMostAnEighth) {
  CachedBlocks blocks;
  for (const size_t bytes : {kMiB, kMiB + 1, 3 * kMiB + 5, 127 * kMiB / 2, 4 * kMiB - 1}) {
    const size_t before = blocks.figures().used;
    auto* const block = static_cast<char*>(blocks.allocate(bytes));
    const size_t size = blocks.figures().used - before;
    EXPECT_GE(size, bytes);
    EXPECT_LE(size, bytes + bytes / 8 + 4096);
    std::memset(block, 1, size);  // the whole block is writable
  }
}

TEST(CachedBlocks, RefusePointersOfOtherAllocators) {
  CachedBlocks blocks;
  int foreign = 0;
  EXPECT_FALSE(blocks.free(&foreign));
  void* const block = blocks.allocate(kMiB);
  EXPECT_TRUE(blocks.free(block));
  EXPECT_FALSE(blocks.free(block)) << "a second time";
}

TEST(CachedBlocks, ReportHowManyBytesTheSystemDidNotHave) {
  CachedBlocks blocks;
  blocks.free(blocks.allocate(2 * kMiB));
  try {
    blocks.allocate(size_t{1} << 60);
    FAIL() << "there is no such machine";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "memory: out of memory for a tensor of 1099511627776 MiB; 0 MiB are in use");
    EXPECT_EQ(error.kind(), ErrorKind::runtime);
  }
  EXPECT_EQ(blocks.figures().kept, 0) << "what was kept went to the system first";
}

TEST(CachedBlocks, GiveNoBlockToTwoThreads) {
  CachedBlocks blocks(16 * kMiB);
  std::vector<std::thread> threads;
  std::atomic<int> mixed = 0;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (int i = 0; i < 300; ++i) {
        const size_t bytes = (1 + static_cast<size_t>(i + id) % 3) * kMiB;
        auto* const block = static_cast<int*>(blocks.allocate(bytes));
        block[0] = block[bytes / sizeof(int) - 1] = id;
        std::this_thread::yield();
        mixed += block[0] != id || block[bytes / sizeof(int) - 1] != id;
        blocks.free(block);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(mixed, 0);
  EXPECT_EQ(blocks.figures().used, 0);
}

TEST(TensorMemory, LargeTensorsReuseMemoryAndThoseFromBeforeAreFreedAsBefore) {
  at::Tensor before = at::ones({1 << 20});
  keep_tensor_memory();
  keep_tensor_memory();  // a second call has no effect
  at::Tensor large = at::ones({1 << 20});
  at::Tensor small = at::ones({10});
  void* const place = large.data_ptr();
  EXPECT_EQ((large + before).sum().item<float>(), 2 << 20);
  large.reset();
  before.reset();
  small.reset();
  large = at::zeros({1 << 20});
  EXPECT_EQ(large.data_ptr(), place);
  EXPECT_EQ(large.sum().item<float>(), 0) << "zeros are written, whatever was there";
  large.resize_({2 << 20});
  EXPECT_EQ(large.narrow(0, 0, 1 << 20).sum().item<float>(), 0) << "a tensor that grows takes its values along";
}

// Otherwise they keep their neighbours from being merged, and a heap of aligned blocks grows without end.
TEST(TensorMemory, SmallFreedBlocksOfAThreadAreMerged) {
  keep_tensor_memory();
  const size_t before = ::mallinfo2().fsmblks;
  std::thread([&] {
    constexpr size_t kBlocks = 200;  // the thread's cache keeps seven
    std::vector<void*> blocks(kBlocks);
    for (void*& block : blocks) {
      block = std::malloc(40);
    }
    for (void* const block : blocks) {
      std::free(block);
    }
    EXPECT_LE(::mallinfo2().fsmblks, before);
  }).join();
}

TEST(ScratchMemory, IsCachedLikeATensorButIsNotATensor) {
  keep_tensor_memory();
  const MemoryMeter meter(at::kCPU);
  const size_t before = tensor_memory().used;
  {
    const ScratchMemory large(3 * kMiB), small(100);
    EXPECT_EQ(tensor_memory().used, before + 3 * kMiB);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % 64, 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data()) % 64, 0);
    std::memset(large.data(), 1, 3 * kMiB);
    std::memset(small.data(), 1, 100);
  }
  EXPECT_EQ(tensor_memory().used, before);
  EXPECT_EQ(meter.peak(), 0);
}
}  // namespace
}  // namespace lehr
