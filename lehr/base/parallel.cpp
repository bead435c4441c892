#include "lehr/base/parallel.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "lehr/base/thread_team.h"
#include "lehr/base/usable_cores.h"

// Entry points of libgomp's stable interface, resolved to the wheel's library.
extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_in_parallel();
int omp_get_num_procs();
void omp_set_num_threads(int threads);
int omp_get_proc_bind();
int omp_get_num_places();
int omp_get_place_num_procs(int place);
void omp_get_place_proc_ids(int place, int* ids);
}

// MKL's number of threads for the calling thread; returns the one before. Null if LibTorch is built without MKL.
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));

namespace lehr {

namespace {
// MKL does not follow OpenMP's number any more once at::set_num_threads was called. 0: MKL's usual number.
int set_mkl_threads(int threads) {
  return MKL_Set_Num_Threads_Local != nullptr ? MKL_Set_Num_Threads_Local(threads) : 0;
}

// Chunks per thread: more balance the load, fewer cost less. A chunk that a preempted thread holds ends late.
constexpr int64_t kChunksPerThread = 4;

struct Loop {
  int64_t begin, end, chunk;
  void (*body)(void*, int64_t, int64_t);
  void* context;
};

void run_chunk(void* data, int64_t index) {
  const auto& loop = *static_cast<const Loop*>(data);
  const int64_t first = loop.begin + index * loop.chunk;
  loop.body(loop.context, first, std::min(first + loop.chunk, loop.end));
}

// After each parallel region ATen's threads poll for 3 ms, on cores that the team's threads need. As libgomp documents
// (GOMP_SPINCOUNT), they poll for some microseconds only if it manages more threads than there are cores. So a thread
// opens one region with as many threads as are missing, and sleeps for ever.
void shorten_polls_of_openmp(int threads) {
  const int wanted = omp_get_num_procs() - threads + 2;
  if (wanted < 2 || std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) {
    return;
  }
  std::thread([wanted] {
    GOMP_parallel([](void*) {}, nullptr, static_cast<unsigned>(wanted), 0);
    static std::atomic<int> never = 0;
    never.wait(0);
  }).detach();
}

// Inside a loop, ATen and nested loops run in place.
class InPlace {
 public:
  explicit InPlace(int threads) : before_(threads), mkl_before_(set_mkl_threads(1)) { omp_set_num_threads(1); }
  ~InPlace() {
    set_mkl_threads(mkl_before_);
    omp_set_num_threads(before_);
  }
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;

 private:
  int before_, mkl_before_;
};

// With OMP_PROC_BIND, binds a worker to the place of the OpenMP thread with its index. It would else inherit the place
// of the thread that started it.
void bind_as_openmp_does(int index) {
  const int places = omp_get_num_places();
  if (omp_get_proc_bind() == 0 || places == 0) {
    return;
  }
  const int place = index % places;
  std::vector<int> cores(static_cast<size_t>(omp_get_place_num_procs(place)));
  omp_get_place_proc_ids(place, cores.data());
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int core : cores) {
    CPU_SET(static_cast<size_t>(core), &mask);
  }
  sched_setaffinity(0, sizeof(mask), &mask);
}

void start_worker(int index) {
  run_in_place();
  bind_as_openmp_does(index);
}

ThreadTeam& team_of_this_thread(int threads) {
  static const bool shortened = (shorten_polls_of_openmp(threads), true);
  static_cast<void>(shortened);
  thread_local ThreadTeam team(start_worker);  // no scope: a rank may be a thread, and has a team of its own
  return team;
}
}  // namespace

int num_threads() {
  return at::get_num_threads();
}

void limit_threads_to_quota() {
  const int granted = static_cast<int>(std::ceil(usable_cores()));
  if (granted < num_threads() && std::getenv("OMP_NUM_THREADS") == nullptr) {
    at::set_num_threads(granted);
  }
}

void run_in_place() {
  at::get_num_threads();  // initializes the thread count of a new thread, which happens only once
  omp_set_num_threads(1);
  set_mkl_threads(1);
}

void detail::run_chunks(
    int64_t begin, int64_t end, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
  if (begin >= end) {
    return;
  }
  const int64_t count = end - begin;
  const int threads = omp_in_parallel() != 0 ? 1 : num_threads();
  const int64_t most = std::max<int64_t>(1, count / std::max<int64_t>(grain, 1));
  if (threads <= 1 || most <= 1) {
    body(context, begin, end);
    return;
  }
  const int64_t chunks = std::min(most, threads * kChunksPerThread);
  Loop loop{begin, end, (count + chunks - 1) / chunks, body, context};
  const InPlace in_place(threads);
  team_of_this_thread(threads).run(
      (count + loop.chunk - 1) / loop.chunk, static_cast<int>(std::min<int64_t>(threads, most)), run_chunk, &loop);
}

}  // namespace lehr
