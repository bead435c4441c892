#include "lehr/base/thread_team.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <system_error>
#include <utility>

namespace lehr {

namespace {
constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kMillisecond = 1000 * kMicrosecond;
// Longer than the serial code between most loops of a training step.
constexpr int64_t kQuietPoll = kMillisecond;
// About the time in which a thread is put to sleep and woken.
constexpr int64_t kContendedPoll = 5 * kMicrosecond;
constexpr int64_t kLookEvery = 5 * kMillisecond;
// A core is contended if a thread has lost more than one part in so many of its time to other work.
constexpr int64_t kShareLost = 5;
// For this time after a preemption, a thread expects to be preempted again.
constexpr int64_t kMemory = 200 * kMillisecond;

int64_t preemptions_of_this_thread() {
  rusage usage{};
  return getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_nivcsw : 0;
}

// The time for which this thread was ready to run and its core did other work, in nanoseconds; nothing if the kernel
// does not count it.
std::optional<int64_t> delays_of_this_thread() {
  const int file = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return std::nullopt;
  }
  std::array<char, 80> text{};  // time on a core, time ready to run, time slices
  const ssize_t size = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  long long running = 0, ready = 0;
  return size > 0 && std::sscanf(text.data(), "%lld %lld", &running, &ready) == 2 ? std::optional<int64_t>(ready)
                                                                                  : std::nullopt;
}
}  // namespace

int64_t AdaptiveSpin::now() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

void AdaptiveSpin::relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool AdaptiveSpin::may_poll_since(int64_t began) {
  const int64_t time = now();
  if (time >= next_look_) {
    const int64_t preemptions = preemptions_of_this_thread();
    const auto delays = delays_of_this_thread();
    // Kernel threads preempt on a quiet machine, too, but for microseconds.
    const bool lost = !delays || *delays - delays_ > (time - next_look_ + kLookEvery) / kShareLost;
    if (preemptions > preemptions_ + 1 && lost && time < next_look_ + kMemory) {
      contended_until_ = time + kMemory;
    }
    preemptions_ = preemptions;
    delays_ = delays.value_or(0);
    next_look_ = time + kLookEvery;
  }
  return time - began < (time < contended_until_ ? kContendedPoll : kQuietPoll);
}

ThreadTeam::ThreadTeam(void (*start_worker)(int index)) : start_worker_(start_worker), process_(getpid()) {}

ThreadTeam::~ThreadTeam() {
  if (getpid() != process_) {
    new std::vector<std::thread>(std::move(workers_));  // a forked process has no such threads, to end or to release
    return;
  }
  stopped_ = true;
  loop_.fetch_add(1);
  loop_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

int ThreadTeam::start_workers(int wanted) {
  try {
    for (int count = static_cast<int>(workers_.size()); count < wanted; ++count) {
      workers_.emplace_back([this, index = count + 1] { work(index); });
    }
  } catch (const std::system_error&) {
    // The system allows no more threads: the loop runs on fewer.
  }
  return std::min(wanted, static_cast<int>(workers_.size()));
}

void ThreadTeam::run(int64_t chunks, int threads, Body body, void* context) {
  threads = start_workers(threads - 1) + 1;
  if (static_cast<int>(shares_.size()) < threads) {
    shares_ = std::vector<Share>(static_cast<size_t>(threads));
  }
  body_ = body;
  context_ = context;
  threads_ = threads;
  for (int i = 0; i < threads; ++i) {
    Share& share = shares_[static_cast<size_t>(i)];
    share.next.store(chunks * i / threads, std::memory_order_relaxed);
    share.end = chunks * (i + 1) / threads;
  }
  members_.store(kOpen, std::memory_order_release);
  loop_.fetch_add(1);
  loop_.notify_all();

  take_chunks(0);

  members_.fetch_and(~kOpen);
  if (!spin_.poll([&] { return members_.load(std::memory_order_acquire) == 0; })) {
    for (uint32_t members; (members = members_.load(std::memory_order_acquire)) != 0;) {
      members_.wait(members);
    }
  }
  if (error_) {
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadTeam::work(int index) {
  start_worker_(index);
  AdaptiveSpin spin;
  for (uint32_t seen = 0; !stopped_.load(std::memory_order_relaxed); seen = loop_.load(std::memory_order_acquire)) {
    if (join(index)) {
      take_chunks(index);
      leave();
    }
    if (!spin.poll([&] { return loop_.load(std::memory_order_acquire) != seen; })) {
      loop_.wait(seen);
    }
  }
}

bool ThreadTeam::join(int index) {
  uint32_t members = members_.load(std::memory_order_acquire);
  while ((members & kOpen) != 0) {
    if (members_.compare_exchange_weak(members, members + 1, std::memory_order_acq_rel)) {
      if (index < threads_) {
        return true;
      }
      leave();
      return false;
    }
  }
  return false;
}

void ThreadTeam::leave() {
  if (members_.fetch_sub(1) == 1) {  // the last one, after the caller
    members_.notify_one();
  }
}

void ThreadTeam::take_chunks(int first_share) {
  for (int i = 0; i < threads_; ++i) {
    Share& share = shares_[static_cast<size_t>((first_share + i) % threads_)];
    for (int64_t chunk; (chunk = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
      try {
        body_(context_, chunk);
      } catch (...) {
        const std::lock_guard lock(error_mutex_);
        error_ = error_ ? error_ : std::current_exception();
      }
    }
  }
}

}  // namespace lehr
