// The equality law of pipelines: whatever the schedule, and whatever it is combined with, a run computes what one
// device computes. As test/train/mesh_test.cpp, in float64 over ten whole steps.
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::expect_equal;
using testing::family;
using testing::Folder;
using ::testing::HasSubstr;
using testing::Mesh;
using testing::Outcome;
using testing::outcome_of;
using testing::Overrides;
using testing::tiny_run;
using testing::train_on;

struct Schedule {
  std::string name;
  int64_t stages_per_rank;
};

const std::vector<Schedule> kSchedules{
    {"GPipe", 1},
    {"1F1B", 1},
    {"ZBH1", 1},
    {"ZBH2", 1},
    {"LoopedBFS", 2},
    {"Interleaved1F1B", 2},
    {"InterleavedZeroBubble", 2},
    {"ZBVZeroBubble", 2},
    {"DualPipeV", 2}};

// Enough layers for eight stages, and microbatches for every schedule on four ranks.
Overrides with(Overrides overrides, const Overrides& more) {
  overrides.emplace_back("model.args.num_hidden_layers", "8");
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

Overrides of(const Schedule& schedule) {
  return {
      {"parallelism.pipeline_parallel_schedule", schedule.name},
      {"parallelism.pipeline_parallel_stages_per_rank", std::to_string(schedule.stages_per_rank)}};
}

struct Model {
  std::string name;
  Overrides overrides;
};

// Runs every schedule on every mesh, and compares with one device.
void expect_law(const Model& model, const std::vector<Mesh>& meshes, const std::vector<Schedule>& schedules) {
  const std::string family_name = model.name.substr(0, model.name.find('.'));
  const Folder alone;
  const auto one_device = tiny_run(alone.path(), with(family(family_name), model.overrides));
  testing::train(one_device);
  const Outcome wanted = outcome_of(one_device);
  for (const Schedule& schedule : schedules) {
    for (const Mesh& mesh : meshes) {
      SCOPED_TRACE(model.name + " " + schedule.name + " " + mesh.name());
      Overrides overrides = model.overrides;
      const Overrides chosen = of(schedule);
      overrides.insert(overrides.end(), chosen.begin(), chosen.end());
      const Folder folder;
      const auto config = tiny_run(folder.path(), with(family(family_name), overrides));
      train_on(mesh, config);
      expect_equal(wanted, outcome_of(config));
      if (::testing::Test::HasFailure()) {
        return;  // the others would say the same at length
      }
    }
  }
}

const Overrides kTied{{"model.args.tie_word_embeddings", "true"}};
const Overrides kUntied{{"model.args.tie_word_embeddings", "false"}};
const Overrides kKeep{{"activation_checkpoint.mode", "none"}};

class EverySchedule : public ::testing::TestWithParam<Schedule> {};
INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule, ::testing::ValuesIn(kSchedules), [](const auto& schedule) {
  return schedule.param.name.front() == '1' ? "OneF1B" : schedule.param.name;
});

TEST_P(EverySchedule, TrainsADenseModelAsOneDevice) {
  expect_law(
      {"qwen3", kUntied},
      {{.pp = 2}, {.pp = 4}, {.dp_shard = 2, .pp = 2}, {.tp = 2, .pp = 2}, {.cp = 2, .pp = 2}},
      {GetParam()});
}

TEST_P(EverySchedule, TrainsTiedTablesAndKeptActivationsAsOneDevice) {
  Overrides tied = kTied;
  tied.insert(tied.end(), kKeep.begin(), kKeep.end());
  expect_law({"qwen3.tied", tied}, {{.pp = 2}, {.pp = 4}, {.dp_shard = 2, .pp = 2}, {.tp = 2, .pp = 2}}, {GetParam()});
}

TEST_P(EverySchedule, TrainsMixturesOfExpertsAsOneDevice) {
  expect_law(
      {"qwen3_moe", {}},
      {{.pp = 2}, {.pp = 4}, {.dp_shard = 2, .ep = 2, .pp = 2}, {.cp = 2, .ep = 2, .pp = 2}, {.tp = 2, .pp = 2}},
      {GetParam()});
}

// Hidden states flow in the type of the arithmetic from the first step on, when no parameter was gathered yet.
TEST(Pipeline, TrainsInMixedPrecision) {
  const Overrides mixed{{"training.dtype", "float32"}, {"training.mixed_precision_param", "bfloat16"}};
  const Folder alone;
  const auto one_device = tiny_run(alone.path(), with(family("qwen3"), mixed));
  testing::train(one_device);
  const Folder folder;
  const auto staged = tiny_run(folder.path(), with(family("qwen3"), mixed));
  train_on({.dp_shard = 2, .pp = 2}, staged);
  const auto wanted = outcome_of(one_device).curves.at("loss"), found = outcome_of(staged).curves.at("loss");
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(found[i], wanted[i], 0.01 * wanted[i]) << i;  // sums in bfloat16, in another order
  }
}

}  // namespace
}  // namespace lehr::train
