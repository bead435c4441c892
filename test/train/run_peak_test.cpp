// The peak of a run: one machine has one peak, however many ranks share it.
#include "lehr/train/run_peak.h"

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "lehr/base/parallel.h"
#include "lehr/base/usable_cores.h"
#include "lehr/train/machine_limits.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

// 40 %: ranks as threads measure one after the other if the machine does other work. Ranks that were simply added up
// would be off by a factor of 4 or more.
TEST(RunPeak, OfRanksThatShareAMachineIsThatOfTheMachine) {
  const int64_t world = 4 * static_cast<int64_t>(usable_cores());
  const double machine = cpu_peak_flops(at::kFloat) / std::min<double>(num_threads(), usable_cores()) * usable_cores();
  ParallelismConfig config;
  config.data_parallel_replicate_degree = world;
  config.data_parallel_shard_degree = 1;
  std::vector<double> peaks(static_cast<size_t>(world));
  mesh::run_ranks(
      world,
      [&](mesh::Transport& transport) {
        const Ranks ranks(config, &transport);
        peaks[static_cast<size_t>(transport.rank())] = peak_flops_of_run(at::kCPU, at::kFloat, ranks);
      },
      std::chrono::seconds(60));
  EXPECT_THAT(peaks, ::testing::Each(peaks[0])) << "all ranks know the same";
  EXPECT_NEAR(peaks[0] / machine, 1, 0.4);
}

TEST(RunPeak, OfOneRankIsThatOfItsProcess) {
  EXPECT_NEAR(peak_flops_of_run(at::kCPU, at::kFloat, Ranks()) / cpu_peak_flops(at::kFloat), 1, 0.3);
}

TEST(UsableCores, AreAtLeastAPartOfOneAndAtMostAllOfTheMachine) {
  EXPECT_GT(usable_cores(), 0);
  EXPECT_LE(usable_cores(), std::thread::hardware_concurrency());
}

}  // namespace
}  // namespace lehr::train
