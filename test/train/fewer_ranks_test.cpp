#include "lehr/train/fewer_ranks.h"

#include <gtest/gtest.h>

#include "lehr/base/error.h"
#include "lehr/train/ranks.h"

namespace lehr::train {
namespace {

struct Degrees {
  int64_t replicate = 1, shard = -1, tp = 1, ep = 1, pp = 1, cp = 1;
};

TrainConfig config_with(const Degrees& degrees, int64_t global, int64_t local = 2) {
  TrainConfig config;
  config.parallelism.data_parallel_replicate_degree = degrees.replicate;
  config.parallelism.data_parallel_shard_degree = degrees.shard;
  config.parallelism.tensor_parallel_degree = degrees.tp;
  config.parallelism.expert_parallel_degree = degrees.ep;
  config.parallelism.pipeline_parallel_degree = degrees.pp;
  config.parallelism.context_parallel_degree = degrees.cp;
  config.training.global_batch_size = global;
  config.training.local_batch_size = local;
  return config;
}

std::vector<std::string> keys(int64_t replicate, int64_t shard, int64_t global) {
  return {
      fmt::format("--parallelism.data_parallel_replicate_degree={}", replicate),
      fmt::format("--parallelism.data_parallel_shard_degree={}", shard),
      fmt::format("--training.global_batch_size={}", global)};
}

void expect_mesh(const SmallerMesh& mesh, int64_t ranks, const std::vector<std::string>& overrides) {
  EXPECT_EQ(mesh.ranks, ranks);
  EXPECT_EQ(mesh.overrides, overrides);
}

TEST(FewerRanks, GivesUpTheFewestDataParallelRanksThatDivideTheBatch) {
  expect_mesh(fit_fewer_ranks(config_with({}, 12), 4, 3, 1), 3, keys(1, 3, 12));
  expect_mesh(fit_fewer_ranks(config_with({}, 8), 4, 3, 1), 2, keys(1, 2, 8));       // 8 sequences: not over 3 ranks
  expect_mesh(fit_fewer_ranks(config_with({}, 12, 4), 3, 2, 1), 1, keys(1, 1, 12));  // 12 = 3 batches of 4
}

TEST(FewerRanks, KeepsTheRanksThatHoldOneModel) {
  expect_mesh(fit_fewer_ranks(config_with({.shard = 4, .tp = 2}, 16), 8, 7, 2), 4, keys(1, 2, 16));
  expect_mesh(fit_fewer_ranks(config_with({.tp = 2, .pp = 2, .cp = 2}, 4), 16, 15, 8), 8, keys(1, 1, 4));
}

TEST(FewerRanks, GivesUpReplicasBeforeShards) {
  expect_mesh(fit_fewer_ranks(config_with({.replicate = 4, .shard = 2}, 48), 8, 7, 2), 6, keys(3, 2, 48));
  expect_mesh(fit_fewer_ranks(config_with({.replicate = 2, .shard = 4}, 24), 8, 7, 2), 6, keys(1, 6, 24));
  expect_mesh(fit_fewer_ranks(config_with({.replicate = 4, .shard = 1}, 24), 4, 3, 2), 3, keys(3, 1, 24));
}

TEST(FewerRanks, TheBatchOfAStepStaysWithoutAKeyForIt) {
  expect_mesh(fit_fewer_ranks(config_with({}, -1), 4, 3, 1), 2, keys(1, 2, 8));  // one batch of 2 on each of 4
}

TEST(FewerRanks, KeepsAWholeNumberOfExpertGroups) {
  // 6 and 5 ranks do not hold 4 groups of experts.
  expect_mesh(fit_fewer_ranks(config_with({.shard = 8, .ep = 4}, 240), 8, 7, 2), 4, keys(1, 4, 240));
}

TEST(FewerRanks, RefusesByNameWhatNoMeshContinues) {
  const auto refused = [](const Degrees& degrees, int64_t global, int64_t begun, int64_t left, int64_t least) {
    try {
      fit_fewer_ranks(config_with(degrees, global), begun, left, least);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused({.tp = 4}, 4, 4, 3, 1).find("must be a multiple of 4"), std::string::npos);
  EXPECT_NE(refused({}, 8, 4, 3, 3).find("no mesh of 3 to 3 ranks continues this run (dp_shard 4)"), std::string::npos);
  EXPECT_NE(refused({.shard = 4, .ep = 4}, 48, 4, 3, 1).find("ep 4"), std::string::npos);
  EXPECT_EQ(refused({}, 8, 4, 3, 2), "");
}

TEST(FewerRanks, RefusesRunsThatNeedTheirNumberOfDataParallelRanks) {
  TrainConfig config = config_with({.pp = 2}, 16);
  EXPECT_NO_THROW(require_fits_fewer_ranks(config));
  config.parallelism.pipeline_parallel_schedule_csv = "schedule.csv";
  EXPECT_THROW(require_fits_fewer_ranks(config), Error);
  EXPECT_THROW(fit_fewer_ranks(config, 8, 7, 1), Error);
  config = config_with({}, 16);
  config.training.task = TaskKind::embedding;
  EXPECT_THROW(require_fits_fewer_ranks(config), Error);
}

// Every answer is a mesh that the run accepts.
TEST(FewerRanks, EveryAnswerIsAMeshOfTheConfig) {
  for (const Degrees& degrees :
       {Degrees{.replicate = 2, .shard = 4}, {.replicate = 2, .shard = 2, .tp = 2}, {.ep = 2}}) {
    for (int64_t left = 1; left < 8; ++left) {
      TrainConfig config = config_with(degrees, 48);
      try {
        const SmallerMesh mesh = fit_fewer_ranks(config, 8, left, 1);
        ASSERT_EQ(mesh.overrides.size(), 3U);
        const auto number = [](const std::string& text) { return std::stoll(text.substr(text.find('=') + 1)); };
        config.parallelism.data_parallel_replicate_degree = number(mesh.overrides[0]);
        config.parallelism.data_parallel_shard_degree = number(mesh.overrides[1]);
        EXPECT_LE(mesh.ranks, left);
        EXPECT_NO_THROW(mesh_of(config.parallelism, mesh.ranks));
        EXPECT_EQ(48 % (2 * number(mesh.overrides[0]) * number(mesh.overrides[1])), 0);
      } catch (const Error&) {
        EXPECT_LT(left, 2);  // one rank holds half a model
      }
    }
  }
}

}  // namespace
}  // namespace lehr::train
