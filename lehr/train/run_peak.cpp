#include "lehr/train/run_peak.h"

#include <ATen/ops/full.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <vector>

#include "lehr/base/parallel.h"
#include "lehr/base/usable_cores.h"
#include "lehr/ops/register_peak/register_peak.h"
#include "lehr/train/gpu_card.h"
#include "lehr/train/machine_limits.h"

namespace lehr::train {

namespace {
// Returns a number that is equal for ranks that share their cores: on one machine, in one container, and not bound to
// different cores by their launcher. float64 holds it exactly.
double cores_id() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  std::error_code none;
  text += std::filesystem::read_symlink("/proc/self/ns/cgroup", none).string();
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    text.append(reinterpret_cast<const char*>(&mask), sizeof(mask));
  }
  return static_cast<double>(std::hash<std::string>{}(text) >> 12);
}

// The CPU of a rank.
struct CpuOfRank {
  double id = 0;  // cores_id
  double threads = 0;
  double cores = 0;
  double flops_per_thread = 0;
};

// Returns the CPUs of all ranks.
std::vector<CpuOfRank> cpus_of(const Ranks& ranks, const CpuOfRank& mine) {
  const at::Tensor rows = ranks.gather({mine.id, mine.threads, mine.cores, mine.flops_per_thread});
  std::vector<CpuOfRank> all(static_cast<size_t>(rows.size(0)));
  std::memcpy(all.data(), rows.const_data_ptr(), rows.nbytes());
  return all;
}

// Returns the FLOP/s of all ranks. Those that share cores have the mean of their threads' rates, times the threads, or
// times the cores if they are fewer.
double flops_of_ranks(const std::vector<CpuOfRank>& ranks) {
  struct Shared {
    double flops = 0;
    double threads = 0;
    double cores = 0;
  };
  std::map<double, Shared> by_id;
  for (const CpuOfRank& rank : ranks) {
    Shared& shared = by_id[rank.id];
    shared.flops += rank.flops_per_thread * rank.threads;
    shared.threads += rank.threads;
    shared.cores = std::max(shared.cores, rank.cores);
  }
  double total = 0;
  for (const auto& [id, shared] : by_id) {
    total += shared.flops * std::min(1.0, shared.cores / shared.threads);
  }
  return total;
}
}  // namespace

double peak_flops_of_run(at::Device device, at::ScalarType dtype, const Ranks& ranks) {
  constexpr double kSeconds = 0.1;
  if (!device.is_cpu()) {
    const at::Tensor total =
        at::full({1}, limits_of(device, dtype, kSeconds).limits.flops, at::TensorOptions(device).dtype(at::kDouble));
    ranks.sum_over_world(total);
    return total.item<double>();
  }
  const CpuOfRank mine{
      .id = cores_id(),
      .threads = static_cast<double>(num_threads()),
      .cores = usable_cores(),
      .flops_per_thread = ops::register_peak_per_thread(dtype, kSeconds)};
  return flops_of_ranks(cpus_of(ranks, mine));
}

}  // namespace lehr::train
