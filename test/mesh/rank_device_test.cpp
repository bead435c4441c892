// The GPU of a rank, as a table; the device on which ranks agree; the environment variables of their backends.
#include "lehr/mesh/rank_device.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "lehr/mesh/backend_variables.h"
#include "test/base/error_of.h"

namespace lehr::mesh {
namespace {

using testing::HasSubstr;

TEST(GpuOfRank, IsTheLocalRankOrTheOnlyVisibleOne) {
  struct Case {
    int64_t local_rank, local_world_size, visible, gpu;
  };
  for (const Case& one : std::vector<Case>{
           {0, 1, 1, 0},
           {3, 4, 4, 3},
           {3, 4, 8, 3},
           {0, 4, 1, 0},  // srun --gpus-per-task=1: every task sees one
           {3, 4, 1, 0},
           {3, 0, 4, 3},  // the launcher does not set the local world size
           {3, 0, 1, 0},
           {0, 0, 1, 0},
           {0, 2, 0, -1},
           {0, 4, 2, -1},  // the ranks would not agree which of them have none
           {1, 4, 2, -1},
           {3, 4, 2, -1},
           {3, 4, 3, -1},
           {3, 0, 2, -1}}) {
    const GpuNumber found = gpu_of_rank(one.local_rank, one.local_world_size, one.visible);
    const std::string which = fmt::format("{} of {}, {} visible", one.local_rank, one.local_world_size, one.visible);
    EXPECT_EQ(found.problem.empty(), one.gpu >= 0) << which << ": " << found.problem;
    if (one.gpu >= 0) {
      EXPECT_EQ(found.number, one.gpu) << which;
    }
  }
  EXPECT_THAT(
      gpu_of_rank(1, 4, 2).problem,
      HasSubstr("this rank is number 1 of 4 on its machine, where it sees 2 usable GPUs; start"));
}

const DeviceOffer kFirst{.type = "cuda", .gpu = "GPU-1"};
const DeviceOffer kSecond{.type = "cuda", .gpu = "GPU-2"};
const DeviceOffer kNone{.type = "cpu", .why_cpu = "there is no NVIDIA driver on this machine"};

DeviceOffer insisting(DeviceOffer offer) {
  offer.require_device = true;
  return offer;
}

std::string refusal(const std::vector<DeviceOffer>& offers) {
  return error_of([&] { agree_on_device(offers); });
}

TEST(AgreeOnDevice, UsesGpusIfEachRankHasItsOwn) {
  EXPECT_EQ(agree_on_device({kFirst, kSecond}).type, "cuda");
  EXPECT_EQ(agree_on_device({insisting(kFirst), insisting(kSecond)}).type, "cuda");
  const auto lacking = agree_on_device({kFirst, kNone});
  EXPECT_EQ(lacking.type, "cpu");
  EXPECT_EQ(lacking.why_cpu, "rank 1: there is no NVIDIA driver on this machine");
  const auto shared = agree_on_device({kFirst, kSecond, kFirst});
  EXPECT_EQ(shared.type, "cpu");
  EXPECT_EQ(shared.why_cpu, "ranks 0 and 2 see one GPU (GPU-1), and each needs its own");
  const auto asked = agree_on_device({insisting({}), insisting({})});
  EXPECT_EQ(asked.type, "cpu");
  EXPECT_EQ(asked.why_cpu, "") << "nothing to explain where a CPU is asked for";
}

TEST(AgreeOnDevice, RefusesRanksThatInsistOnAnImpossibleDevice) {
  EXPECT_EQ(
      refusal({insisting(kFirst), insisting({})}),
      "training.device: rank 1 would compute on cpu, rank 0 on cuda; start all ranks alike");
  EXPECT_THAT(refusal({insisting(kFirst), insisting(kFirst)}), HasSubstr("ranks 0 and 1 see one GPU (GPU-1)"));
  EXPECT_EQ(refusal({kFirst, insisting({})}), "no error") << "one may be on its CPU where the others may be too";
}

TEST(DeviceOffer, SurvivesSerializationInTheStore) {
  for (const DeviceOffer& offer : {kFirst, insisting(kSecond), kNone, DeviceOffer{.why_cpu = "two\nlines"}}) {
    const DeviceOffer read = DeviceOffer::from_text(offer.to_text());
    EXPECT_EQ(read.type, offer.type);
    EXPECT_EQ(read.require_device, offer.require_device);
    EXPECT_EQ(read.gpu, offer.gpu);
    EXPECT_EQ(read.why_cpu, offer.why_cpu);
  }
}

TEST(BackendVariables, AreSetOnceAndKeepTheUsersFlightRecorderSettings) {
  set_backend_variables();
  for (const BackendVariable& variable : backend_variables()) {
    const char* const value = std::getenv(variable.name);
    ASSERT_NE(value, nullptr) << variable.name;
    if (variable.overwrites) {
      EXPECT_STREQ(value, variable.value) << variable.name;
    }
  }
  setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 1);
  set_backend_variables();
  EXPECT_STREQ(std::getenv("TORCH_NCCL_BLOCKING_WAIT"), "1") << "a second call would write beside other threads";
  setenv("TORCH_NCCL_BLOCKING_WAIT", "0", 1);
}

}  // namespace
}  // namespace lehr::mesh
