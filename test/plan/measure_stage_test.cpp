#include "lehr/plan/measure_stage.h"

#include "test/plan/support.h"

namespace lehr::plan {
namespace {

using testing::expect_same_bytes;
using testing::model_of;
using testing::Overrides;
using testing::Planned;

const Overrides kFloat64{{"training.dtype", "float64"}};
const Overrides kMixed{{"training.mixed_precision_param", "bfloat16"}};
const Overrides kCheckpointing{{"activation_checkpoint.mode", "full"}};
const std::vector<std::string> kFamilies{"qwen3", "qwen3_moe", "llama3"};

Overrides both(Overrides one, const Overrides& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

// oneDNN's products copy operands that are transposed views; other devices' libraries read them as they are.
class MeasureStage : public ::testing::Test {
 protected:
  MeasureStage() { at::globalContext().setUserEnabledMkldnn(false); }
  ~MeasureStage() override { at::globalContext().setUserEnabledMkldnn(true); }
};

// On one device, with the tolerance of the project's plans. Figures that can be exact mostly are.
void expect_memory_of_a_run(const Overrides& changes, double tolerance) {
  for (const std::string& family : kFamilies) {
    for (const bool checkpointing : {false, true}) {
      SCOPED_TRACE(family + (checkpointing ? ", checkpointing" : ""));
      const Planned planned(model_of(family, both(changes, checkpointing ? kCheckpointing : Overrides{})));
      expect_same_bytes(planned.on_meta(), planned.on_cpu(), tolerance);
    }
  }
}

TEST_F(MeasureStage, MemoryIsThatOfARunInFloat32) {
  expect_memory_of_a_run({}, 0.02);
}

TEST_F(MeasureStage, MemoryIsThatOfARunInFloat64) {
  expect_memory_of_a_run(kFloat64, 0.02);
}

TEST_F(MeasureStage, MemoryIsThatOfARunInMixedPrecision) {
  expect_memory_of_a_run(kMixed, 0.02);
}

void expect_memory_on_ranks(const Overrides& changes, int64_t ranks, const std::vector<std::string>& families = kFamilies) {
  for (const std::string& family : families) {
    SCOPED_TRACE(family);
    const Planned planned(model_of(family, changes));
    expect_same_bytes(planned.on_meta(), planned.on_cpu(ranks), 0.02);
  }
}

TEST_F(MeasureStage, MemoryIsThatOfFullyShardedRanks) {
  for (const char* policy : {"\"default\"", "\"always\"", "\"never\""}) {
    SCOPED_TRACE(policy);
    expect_memory_on_ranks(both(kMixed, {{"parallelism.data_parallel_shard_degree", "2"}, {"parallelism.fsdp_reshard_after_forward", policy}}), 2);
  }
}

TEST_F(MeasureStage, MemoryIsThatOfReplicas) {
  expect_memory_on_ranks(both(kMixed, {{"parallelism.data_parallel_replicate_degree", "2"}}), 2);
}

TEST_F(MeasureStage, MemoryIsThatOfTensorParallelRanks) {
  expect_memory_on_ranks(both(kMixed, {{"parallelism.tensor_parallel_degree", "2"}}), 2);
}

TEST_F(MeasureStage, MemoryIsThatOfContextParallelRanks) {
  expect_memory_on_ranks(both(kMixed, {{"parallelism.context_parallel_degree", "2"}}), 2);
}

TEST_F(MeasureStage, MemoryIsThatOfExpertParallelRanks) {
  expect_memory_on_ranks(both(kMixed, {{"parallelism.data_parallel_shard_degree", "2"}, {"parallelism.expert_parallel_degree", "2"}}), 2, {"qwen3_moe"});
}

}  // namespace
}  // namespace lehr::plan
