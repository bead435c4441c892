// The threads that share the chunks of a caller's loops. lehr/base/parallel.h is the interface for kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace lehr {

/// Adaptive spinning: decides how long a waiting thread polls before it sleeps. On an idle machine it polls long, since
/// waking a thread takes longer than many loops. While the system gives the thread's core to other work it polls
/// briefly, since a polling thread takes the core from that work. For one thread at a time.
class AdaptiveSpin {
 public:
  /// Polls `ready` for a while. Returns whether it became true.
  template <class Ready>
  bool poll(const Ready& ready) {
    const int64_t began = now();
    do {
      for (int i = 0; i < kPollsPerLook; ++i) {
        if (ready()) {
          return true;
        }
        relax();
      }
    } while (may_poll_since(began));
    return false;
  }

 private:
  static constexpr int kPollsPerLook = 32;

  static int64_t now();
  static void relax();
  bool may_poll_since(int64_t began);

  int64_t next_look_ = 0;  // nanoseconds, as all times here
  int64_t contended_until_ = 0;
  int64_t preemptions_ = 0;  // of this thread until the last look
  int64_t delays_ = 0;       // the time for which this thread waited for a core until then
};

/// One thread's workers. Chunks are taken rather than assigned: a worker whose core does other work takes none, and the
/// loop ends without it. Workers start with the first loop that needs them.
class ThreadTeam {
 public:
  using Body = void (*)(void* context, int64_t chunk);

  /// Each worker first calls `start_worker` with its index, which counts from 1.
  explicit ThreadTeam(void (*start_worker)(int index));
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  /// Calls body(context, chunk) for each chunk in [0, chunks), on the calling thread and up to `threads` - 1 workers.
  /// Rethrows an exception of `body` after the other chunks are done.
  void run(int64_t chunks, int threads, Body body, void* context);

 private:
  static constexpr uint32_t kOpen = 1U << 31;

  int start_workers(int wanted);
  void work(int index);
  bool join(int index);
  void leave();
  void take_chunks(int first_share);

  void (*const start_worker_)(int index);
  const int64_t process_;
  std::vector<std::thread> workers_;
  AdaptiveSpin spin_;

  // The current loop; changes only while no worker is in it.
  Body body_ = nullptr;
  void* context_ = nullptr;
  int threads_ = 0;  // of the loop, with the caller
  std::mutex error_mutex_;
  std::exception_ptr error_;

  // The chunks of a loop lie in one share per thread. A thread takes those of its own share in order, which are next to
  // each other in memory, and then those that are left in other shares.
  struct alignas(64) Share {
    std::atomic<int64_t> next = 0;
    int64_t end = 0;
  };
  std::vector<Share> shares_;

  // Each on a cache line of its own.
  alignas(64) std::atomic<uint32_t> members_ = 0;  // workers in the loop, plus kOpen while more may join
  alignas(64) std::atomic<uint32_t> loop_ = 0;     // the loop's number, for which workers wait
  std::atomic<bool> stopped_ = false;
};

}  // namespace lehr
