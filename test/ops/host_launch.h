// Runs the bodies of CUDA kernels on the host, thread by thread, in groups of exactly the sizes that a GPU would get.
// Not covered are launches, shuffles and barriers (lehr/ops/cuda/launch.h).
#pragma once

#include <gtest/gtest.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "lehr/ops/cuda.h"
#include "lehr/ops/cuda/portable.h"

namespace lehr::ops::test {

/// The threads of a group, each with its own stack; one runs until it waits for the others or ends.
class HostThreads {
 public:
  /// Calls body(rank) on each.
  template <class Body>
  void run(int size, const Body& body) {
    call_ = [](const void* of, int rank) { (*static_cast<const Body*>(of))(rank); };
    body_ = &body;
    threads_.resize(std::max(static_cast<size_t>(size), threads_.size()));
    size_ = size;
    current() = this;
    for (int rank = 0; rank < size; ++rank) {
      start(at(rank));
    }
    for (int waiting = size; waiting > 0;) {
      const int before = waiting;
      waiting = 0;
      for (rank_ = 0; rank_ < size; ++rank_) {
        if (!at(rank_).done) {
          swapcontext(&scheduler_, &at(rank_).context);
          waiting += at(rank_).done ? 0 : 1;
        }
      }
      if (waiting != 0 && (waiting != size || before != size)) {
        ADD_FAILURE() << waiting << " of " << size << " threads of a group wait for the others";
        std::abort();
      }
    }
  }

  /// Exchanges one number per thread, in the order of ranks. Two buffers alternate, since other threads may be slower.
  const std::vector<double>& gather(double mine) {
    Thread& me = at(rank_);
    std::vector<double>& all = buffers_[static_cast<size_t>(me.gathers++ % 2)];
    all.resize(static_cast<size_t>(size_));
    all[static_cast<size_t>(rank_)] = mine;
    swapcontext(&me.context, &scheduler_);
    return all;
  }

  static HostThreads*& current() {
    thread_local HostThreads* threads = nullptr;
    return threads;
  }

 private:
  static constexpr size_t kStack = 256 << 10;
  struct Thread {
    ucontext_t context = {};
    std::unique_ptr<char[]> stack = {};
    int gathers = 0;
    bool done = true;
  };
  Thread& at(int rank) { return threads_[static_cast<size_t>(rank)]; }

  void start(Thread& thread) {
    if (thread.stack == nullptr) {
      thread.stack.reset(new char[kStack]);  // uninitialized, so that untouched pages take no memory
    }
    thread.gathers = 0;
    thread.done = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStack;
    thread.context.uc_link = &scheduler_;
    makecontext(
        &thread.context,
        [] {
          HostThreads& all = *current();
          const int rank = all.rank_;
          all.call_(all.body_, rank);
          all.at(rank).done = true;
        },
        0);
  }

  std::vector<Thread> threads_;
  std::vector<double> buffers_[2];
  ucontext_t scheduler_ = {};
  void (*call_)(const void* body, int rank) = nullptr;
  const void* body_ = nullptr;
  int size_ = 0;
  int rank_ = 0;
};

/// A group, as kernel bodies use it.
class HostGroup {
 public:
  HostGroup(HostThreads& threads, int rank, int size, void* scratch)
      : threads_(threads), rank_(rank), size_(size), scratch_(scratch) {}
  int rank() const { return rank_; }
  int size() const { return size_; }
  void* scratch() const { return scratch_; }
  void sync() { threads_.gather(0); }
  template <class X>
  X sum(X mine) {
    double total = 0;
    for (const double x : threads_.gather(static_cast<double>(mine))) {
      total += x;
    }
    return static_cast<X>(total);
  }
  float max(float mine) {
    float most = mine;
    for (const double x : threads_.gather(static_cast<double>(mine))) {
      most = fmaxf(most, static_cast<float>(x));
    }
    return most;
  }

 private:
  HostThreads& threads_;
  int rank_;
  int size_;
  void* scratch_;
};

/// See lehr/ops/cuda/kernel.h. Refuses launches that a GPU would refuse.
struct HostLaunch {
  /// Number of launches so far, so that a test can check that it ran kernels.
  static std::atomic<int64_t>& launches() {
    static std::atomic<int64_t> count = 0;
    return count;
  }

  /// The least that kernel bodies support, so that rows of tests exceed it.
  static int64_t most_scratch() { return 9 << 10; }

  template <class Body>
  static cuda::Status groups(const Body& body, int64_t count, int64_t threads, int64_t scratch = 0) {
    ++launches();
    if (scratch > most_scratch()) {
      return "no such memory of a group";
    }
    if (threads > cuda::kMostThreads || (threads > 32 && threads % 32 != 0) || (threads & (threads - 1)) != 0) {
      return "no such group of threads";
    }
    static thread_local HostThreads host;                                          // ranks may be threads
    const std::unique_ptr<char[]> memory(new char[static_cast<size_t>(scratch)]);  // exactly: the sanitizer sees more
    for (int64_t index = 0; index < count; ++index) {
      const int size = static_cast<int>(threads);
      host.run(size, [&](int rank) {
        HostGroup group(host, rank, size, memory.get());
        body(group, index);
      });
    }
    return nullptr;
  }
  template <class Body>
  static cuda::Status warps(const Body& body, int64_t count, int64_t threads) {
    return threads <= 32 ? groups(body, count, threads) : "more threads than a warp has";
  }
  template <class Body>
  static cuda::Status blocks(const Body& body, int64_t count, int64_t threads, int64_t scratch = 0) {
    return threads >= 32 ? groups(body, count, threads, scratch) : "fewer threads than a warp has";
  }
};

/// The table of CUDA kernels as loops on the host (host_kernels.cpp).
const cuda::Table& host_table();

}  // namespace lehr::ops::test
