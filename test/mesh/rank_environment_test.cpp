// The environment variables that launchers set, and errors when some are missing.
#include "lehr/mesh/rank_environment.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "test/base/error_of.h"

namespace lehr::mesh {
namespace {

using testing::HasSubstr;

std::string refusal(const Variables& variables) {
  return error_of([&] { read_rank_environment(variables); });
}

Variables torchrun(const Variables& more = {}) {
  Variables result{
      {"RANK", "3"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_RANK", "1"},
      {"MASTER_ADDR", "node7"},
      {"MASTER_PORT", "29500"},
      {"TORCHELASTIC_RUN_ID", "none"}};
  for (const auto& [name, value] : more) {
    result[name] = value;
  }
  return result;
}

Variables srun(const Variables& more = {}) {
  Variables result{
      {"SLURM_JOB_ID", "4711"},
      {"SLURM_PROCID", "5"},
      {"SLURM_NTASKS", "16"},
      {"SLURM_LOCALID", "1"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_JOB_NODELIST", "gpu[003-006,010]"}};
  for (const auto& [name, value] : more) {
    result[name] = value;
  }
  return result;
}

TEST(RankEnvironment, WithoutALauncherThereIsOneRank) {
  const RankEnvironment alone = read_rank_environment({{"HOME", "/root"}, {"RANK", ""}});
  EXPECT_EQ(alone.launcher, "");
  EXPECT_EQ(alone.rank, 0);
  EXPECT_EQ(alone.world_size, 1);
}

TEST(RankEnvironment, TorchrunSetsEveryVariable) {
  const RankEnvironment ranks = read_rank_environment(torchrun({{"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  EXPECT_EQ(ranks.launcher, "torchrun");
  EXPECT_EQ(ranks.rank, 3);
  EXPECT_EQ(ranks.world_size, 8);
  EXPECT_EQ(ranks.local_rank, 1);
  EXPECT_EQ(ranks.master_address, "node7");
  EXPECT_EQ(ranks.master_port, 29500);
  EXPECT_TRUE(ranks.launcher_keeps_store);
  EXPECT_TRUE(ranks.has_earlier_keys);
}

TEST(RankEnvironment, KnowsTheLocalRanksIfTheLauncherSetsThem) {
  EXPECT_EQ(read_rank_environment(torchrun()).local_world_size, 0);
  EXPECT_EQ(read_rank_environment(torchrun({{"LOCAL_WORLD_SIZE", "2"}})).local_world_size, 2);
  EXPECT_EQ(read_rank_environment(srun()).local_world_size, 0);
  const Variables node{{"SLURM_NODEID", "2"}, {"SLURM_TASKS_PER_NODE", "4(x2),8"}};
  EXPECT_EQ(read_rank_environment(srun(node)).local_world_size, 8);
  EXPECT_EQ(tasks_on_node("4(x3),2", 2), 4);
  EXPECT_EQ(tasks_on_node("4(x3),2", 3), 2);
  EXPECT_EQ(tasks_on_node("3,4(x2)", 0), 3);
  EXPECT_EQ(tasks_on_node("16", 0), 16);
  EXPECT_EQ(tasks_on_node("16", 1), 0);
  EXPECT_THROW(tasks_on_node("four", 0), Error);
  EXPECT_THROW(tasks_on_node("4(x", 0), Error);
}

TEST(RankEnvironment, MissingVariablesAreNamed) {
  for (const char* const name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(refusal(torchrun({{name, ""}})), HasSubstr(std::string(name) + " is missing beside")) << name;
  }
  for (const char* const name : {"SLURM_NTASKS", "SLURM_LOCALID"}) {
    EXPECT_THAT(refusal(srun({{name, ""}})), HasSubstr(std::string(name) + " is missing beside SLURM_PROCID")) << name;
  }
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "1"}}), HasSubstr("OMPI_COMM_WORLD_SIZE is missing"));
  EXPECT_THAT(refusal({{"PMI_SIZE", "2"}}), HasSubstr("PMI_RANK is missing"));
}

TEST(RankEnvironment, WrongNumbersAreNamed) {
  EXPECT_THAT(refusal(torchrun({{"RANK", "8"}})), HasSubstr("RANK=8: expected less than WORLD_SIZE=8"));
  EXPECT_THAT(refusal(torchrun({{"RANK", "-1"}})), HasSubstr("RANK: expected a number of at least 0, found '-1'"));
  EXPECT_THAT(refusal(torchrun({{"WORLD_SIZE", "8x"}})), HasSubstr("WORLD_SIZE: expected a number"));
  EXPECT_THAT(refusal(torchrun({{"MASTER_PORT", "70000"}})), HasSubstr("MASTER_PORT: expected a port below 65536"));
}

TEST(RankEnvironment, SlurmsFirstHostIsTheMasterAndThePortFollowsFromTheJob) {
  const RankEnvironment ranks = read_rank_environment(srun());
  EXPECT_EQ(ranks.launcher, "srun");
  EXPECT_EQ(ranks.rank, 5);
  EXPECT_EQ(ranks.world_size, 16);
  EXPECT_EQ(ranks.local_rank, 1);
  EXPECT_EQ(ranks.master_address, "gpu003");
  EXPECT_FALSE(ranks.launcher_keeps_store);
  EXPECT_GE(ranks.master_port, 15000);
  EXPECT_LT(ranks.master_port, 31000);
  EXPECT_EQ(read_rank_environment(srun({{"SLURM_PROCID", "0"}})).master_port, ranks.master_port);
  EXPECT_NE(read_rank_environment(srun({{"SLURM_JOB_ID", "4712"}})).master_port, ranks.master_port);
  EXPECT_NE(read_rank_environment(srun({{"SLURM_STEP_ID", "1"}})).master_port, ranks.master_port);
  EXPECT_EQ(read_rank_environment(srun({{"LEHR_MASTER_PORT", "1234"}})).master_port, 1234);
  EXPECT_EQ(read_rank_environment(srun({{"MASTER_ADDR", "there"}})).master_address, "there");
  // A step may have fewer tasks, and other nodes, than its job.
  const RankEnvironment step =
      read_rank_environment(srun({{"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_STEP_NODELIST", "gpu004"}}));
  EXPECT_EQ(step.world_size, 6);
  EXPECT_EQ(step.master_address, "gpu004");
}

TEST(RankEnvironment, ABatchScriptIsNotARank) {
  const Variables script = srun({{"SLURM_STEP_ID", ""}, {"ENVIRONMENT", "BATCH"}, {"SLURM_PROCID", "0"}});
  EXPECT_THAT(refusal(script), HasSubstr("SLURM_NTASKS=16"));
  EXPECT_THAT(refusal(script), HasSubstr("srun"));
}

TEST(RankEnvironment, ReadsListsOfHosts) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node1,node2"), "node1");
  EXPECT_EQ(first_host("node[003-006,010],gpu7"), "node003");
  EXPECT_EQ(first_host("node[7,9]"), "node7");
  EXPECT_EQ(first_host("rack[1-2]node[01-16]-ib,x"), "rack1node01-ib");
  for (const char* const wrong : {"", ",a", "node[1-2", "node[]"}) {
    EXPECT_THROW(first_host(wrong), Error) << wrong;
  }
}

TEST(RankEnvironment, MpirunOnOneMachineNeedsNoAddress) {
  Variables mpirun{
      {"OMPI_COMM_WORLD_RANK", "2"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
      {"PMIX_NAMESPACE", "12345"},
      // Variables that mpirun inherited from the batch script do not count.
      {"SLURM_PROCID", "0"},
      {"SLURM_NTASKS", "4"},
      {"SLURM_LOCALID", "0"}};
  const RankEnvironment ranks = read_rank_environment(mpirun);
  EXPECT_EQ(ranks.launcher, "mpirun");
  EXPECT_EQ(ranks.rank, 2);
  EXPECT_EQ(ranks.world_size, 4);
  EXPECT_EQ(ranks.master_address, "127.0.0.1");
  mpirun["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_THAT(refusal(mpirun), HasSubstr("MASTER_ADDR"));
  mpirun["SLURM_JOB_NODELIST"] = "a[1-2]";
  EXPECT_EQ(read_rank_environment(mpirun).master_address, "a1");
  // Open MPI starts the ranks of other machines in a SLURM step without the machine of mpirun: all must agree.
  Variables remote = mpirun;
  remote["SLURM_STEP_NODELIST"] = "a2";
  remote["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(read_rank_environment(remote).master_address, "a1");
  EXPECT_EQ(read_rank_environment(remote).master_port, read_rank_environment(mpirun).master_port);
  mpirun.erase("PMIX_NAMESPACE");
  EXPECT_THAT(refusal(mpirun), HasSubstr("MASTER_PORT"));
}

TEST(RankEnvironment, PmiIsReadUnlessItIsSlurms) {
  const Variables mpiexec{
      {"PMI_RANK", "1"},
      {"PMI_SIZE", "2"},
      {"MPI_LOCALRANKID", "1"},
      {"MPI_LOCALNRANKS", "2"},
      {"MASTER_PORT", "5555"}};
  const RankEnvironment ranks = read_rank_environment(mpiexec);
  EXPECT_EQ(ranks.launcher, "mpiexec");
  EXPECT_EQ(ranks.rank, 1);
  EXPECT_EQ(ranks.master_port, 5555);
  EXPECT_EQ(read_rank_environment(srun({{"PMI_RANK", "5"}, {"PMI_SIZE", "16"}})).launcher, "srun");
}

TEST(RankEnvironment, AnExportedRankThatHidesALauncherIsRefused) {
  const Variables stale{
      {"RANK", "0"},
      {"WORLD_SIZE", "1"},
      {"LOCAL_RANK", "0"},
      {"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "4"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
  EXPECT_THAT(refusal(stale), HasSubstr("RANK=0 and WORLD_SIZE=1 contradict OMPI_COMM_WORLD_RANK=1"));
  // srun may start torchrun itself, once per node.
  EXPECT_EQ(read_rank_environment(torchrun({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}})).world_size, 8);
}

TEST(RankEnvironment, ProgramsOfOneProcessDetectThatALauncherStartedSeveral) {
  EXPECT_EQ(started_beside_others(torchrun()).description, "torchrun started 8 processes (RANK=3, WORLD_SIZE=8)");
  EXPECT_EQ(started_beside_others(srun()).description, "srun started 16 processes (SLURM_PROCID=5, SLURM_NTASKS=16)");
  EXPECT_THAT(
      started_beside_others(srun()).variables, testing::ElementsAre("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"));
  // Variables that no launcher set are ignored, and so is a launcher that started one process.
  EXPECT_EQ(started_beside_others({}).description, "");
  EXPECT_EQ(started_beside_others({{"RANK", "many"}, {"WORLD_SIZE", "8"}}).description, "");
  EXPECT_EQ(started_beside_others({{"WORLD_SIZE", "8"}}).description, "");
  EXPECT_EQ(started_beside_others(torchrun({{"RANK", "0"}, {"WORLD_SIZE", "1"}})).description, "");
  EXPECT_EQ(
      started_beside_others({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"ENVIRONMENT", "BATCH"}}).description, "");
  EXPECT_THAT(
      started_beside_others(torchrun({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"ENVIRONMENT", "BATCH"}}))
          .description,
      HasSubstr("torchrun"));
}

}  // namespace
}  // namespace lehr::mesh
