#include "lehr/ops/register_peak/register_peak.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/parallel.h"
#include "lehr/ops/register_peak/kernels.h"

namespace lehr::ops {

namespace {
using FlopsOfRounds = std::function<double(int64_t rounds)>;

template <class T>
FlopsOfRounds vectors(Arch arch) {
  return [kernel = cpu_kernels<MultiplyAddKernels<T>>(arch).multiply_adds](int64_t rounds) {
    return kernel(rounds).flops;
  };
}

FlopsOfRounds multiply_adds_in(at::ScalarType dtype) {
  const Arch arch = current_arch();
  switch (dtype) {
    case at::kDouble:
      return vectors<double>(arch);
    case at::kBFloat16:
      return vectors<Bf16>(arch);
    default:
      return vectors<float>(arch);
  }
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns the FLOP/s of this thread's best slice within about `seconds`.
double best_slice(const FlopsOfRounds& multiply_adds, double seconds) {
  // Long enough for the clock, and short enough to be left alone on a machine that does other work.
  constexpr double kSlice = 0.25e-3;
  constexpr int kLeast = 8;  // slices, if the thread hardly runs
  int64_t rounds = 1000;
  double best = 0;
  const double deadline = seconds_now() + seconds;
  for (int slices = 0; slices < kLeast || seconds_now() < deadline;) {
    const double begin = seconds_now();
    const double flops = multiply_adds(rounds);
    const double elapsed = seconds_now() - begin;
    if (elapsed < kSlice) {
      rounds *= 2;
      continue;
    }
    best = std::max(best, flops / elapsed);
    ++slices;
  }
  return best;
}
}  // namespace

double register_peak_per_thread(at::ScalarType dtype, double seconds) {
  require(at::isFloatingType(dtype), "peak: expected a floating-point dtype, found {}", c10::toString(dtype));
  const FlopsOfRounds multiply_adds = multiply_adds_in(dtype);
  std::vector<double> best(static_cast<size_t>(num_threads()));
  parallel_for(0, num_threads(), 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      best[static_cast<size_t>(thread)] = best_slice(multiply_adds, seconds);
    }
  });
  return std::accumulate(best.begin(), best.end(), 0.0) / static_cast<double>(best.size());
}

}  // namespace lehr::ops
