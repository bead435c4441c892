#include "lehr/emulate/emulate.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/plan/make_plan.h"
#include "test/train/support.h"

namespace lehr::emulate {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Layers of published models: on meta tensors, their size costs nothing.
plan::Plan plan_of(
    const Overrides& overrides, const plan::Machine& machine = {}, const plan::PlanOptions& options = {}) {
  const train::testing::Folder folder;
  const auto file = folder.path() / "run.toml";
  write_file_atomically(
      file,
      "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[model.args]\nnum_hidden_layers = 8\n[tokenizer]\npath = \"byte\"\n"
      "[[data.datasets]]\npath = \"none\"\n[training]\nseq_len = 2048\nlocal_batch_size = 1\n"
      "dtype = \"float32\"\nmixed_precision_param = \"bfloat16\"\nmixed_precision_reduce = \"float32\"\n"
      "[optimizer]\nname = \"adamw\"\n[activation_checkpoint]\nmode = \"none\"\n");
  const auto config = load_config<train::TrainConfig>({.file = file, .overrides = overrides});
  const auto specs = train::testing::specs();
  plan::PlanOptions with = options;
  with.compare_schedules = false;
  return make_plan(config, specs.at(config.model), machine, with);
}

Emulation emulated(const plan::Plan& plan) {
  const auto specs = train::testing::specs();
  return emulate(plan, specs.at(plan.run.config.model));
}

Overrides mesh(const Overrides& degrees, int64_t sequences, const Overrides& more = {}) {
  Overrides overrides{{"training.global_batch_size", std::to_string(sequences)}};
  for (const auto& [axis, degree] : degrees) {
    overrides.emplace_back("parallelism." + axis + "_degree", degree);
  }
  if (std::none_of(
          degrees.begin(), degrees.end(), [](const auto& one) { return one.first == "data_parallel_shard"; })) {
    overrides.emplace_back("parallelism.data_parallel_shard_degree", "1");
  }
  return train::testing::joined(overrides, more);
}

double computing(const plan::ActionCost& cost) {
  return cost.computing();
}

TEST(Emulate, OneRankComputesForAsLongAsThePlanSays) {
  const plan::Plan plan = plan_of(mesh({}, 3), {.achieved_fraction = 0.7});
  const Replay step = emulated(plan).step;
  const plan::StageCost& cost = plan.stages[0].cost;
  EXPECT_NEAR(
      step.ranks[0].computing,
      3 * (computing(cost.forward) + computing(cost.backward)) + cost.optimizer,
      0.01 * plan.step_seconds);
  EXPECT_EQ(step.ranks[0].waiting, 0);
  EXPECT_EQ(step.ranks[0].exposed(), 0);
  ASSERT_EQ(step.actions[0].size(), 6);
  EXPECT_EQ(pipeline::to_string(step.actions[0][3].action), "0B1");
}

struct Mesh {
  const char* name;
  Overrides overrides;
};

class EmulatedMesh : public ::testing::TestWithParam<Mesh> {};

// The law of docs/emulate.md. What a plan leaves out (messages that wait, and share links) is less than 2 %.
TEST_P(EmulatedMesh, TakesTheTimeOfThePlan) {
  const plan::Plan plan = plan_of(GetParam().overrides);
  const Emulation found = emulated(plan);
  EXPECT_NEAR(plan.step_seconds / found.step.step_seconds, 1, 0.02) << report_text(found, plan);
}

const Overrides kOnce{{"parallelism.fsdp_reduce_each_microbatch", "false"}};

const Overrides kKeptWhole{
    {"parallelism.fsdp_reduce_each_microbatch", "false"}, {"parallelism.fsdp_reshard_after_forward", "\"never\""}};

Overrides pipeline_of(const std::string& schedule, int64_t per_rank, const Overrides& more = {}) {
  Overrides overrides{
      {"parallelism.pipeline_parallel_schedule", "\"" + schedule + "\""},
      {"parallelism.pipeline_parallel_stages_per_rank", std::to_string(per_rank)},
      {"parallelism.pipeline_parallel_microbatch_size", "1"}};
  return train::testing::joined(overrides, more);
}

INSTANTIATE_TEST_SUITE_P(
    ,
    EmulatedMesh,
    ::testing::Values(
        Mesh{"shards", mesh({{"data_parallel_shard", "8"}}, 16)},
        Mesh{"tensors", mesh({{"data_parallel_shard", "2"}, {"tensor_parallel", "4"}}, 4, kOnce)},
        Mesh{"context", mesh({{"data_parallel_shard", "2"}, {"context_parallel", "4"}}, 4)},
        Mesh{
            "plain_pipeline",
            mesh({{"pipeline_parallel", "4"}, {"data_parallel_shard", "2"}}, 16, pipeline_of("1F1B", 1))},
        Mesh{
            "interleaved",
            mesh({{"pipeline_parallel", "4"}, {"tensor_parallel", "2"}}, 8, pipeline_of("Interleaved1F1B", 2, kOnce))},
        Mesh{
            "kept_whole",
            mesh(
                {{"pipeline_parallel", "4"}, {"data_parallel_shard", "4"}},
                32,
                pipeline_of("Interleaved1F1B", 2, kKeptWhole))},
        Mesh{
            "replicas_of_a_pipeline",
            mesh(
                {{"pipeline_parallel", "2"}, {"data_parallel_replicate", "2"}, {"data_parallel_shard", "2"}},
                8,
                pipeline_of("LoopedBFS", 2, kOnce))},
        Mesh{"gathered_again", mesh({{"tensor_parallel", "8"}}, 4, {{"parallelism.tensor_parallel_regather", "true"}})},
        Mesh{
            "zero_bubble",
            mesh({{"pipeline_parallel", "4"}, {"data_parallel_replicate", "2"}}, 16, pipeline_of("ZBVZeroBubble", 2))}),
    [](const auto& named) { return named.param.name; });

TEST(Emulate, IsTheSameEachTime) {
  const plan::Plan plan =
      plan_of(mesh({{"pipeline_parallel", "2"}, {"data_parallel_shard", "2"}}, 8, pipeline_of("1F1B", 1)));
  const Emulation once = emulated(plan);
  const Emulation again = emulated(plan);
  EXPECT_EQ(report_text(once, plan), report_text(again, plan));
  EXPECT_EQ(once.step.step_seconds, again.step.step_seconds);
}

// All time of a rank is accounted for.
TEST(Emulate, ComputationBubbleAndExposedTimeAddUp) {
  const Replay step = emulated(plan_of(mesh(
                                   {{"pipeline_parallel", "2"}, {"data_parallel_shard", "2"}, {"tensor_parallel", "2"}},
                                   8,
                                   pipeline_of("1F1B", 1))))
                          .step;
  for (const RankTime& rank : step.ranks) {
    EXPECT_NEAR(rank.computing + rank.waiting + rank.exposed(), rank.end, 1e-9);
    EXPECT_GT(rank.exposed("tp"), 0);
  }
}

// A pipeline gathers what each forward and backward reads. A prefetch that guesses wrong is dropped: at most one of
// each direction per stage and step, where forwards and backwards begin and cease to alternate.
TEST(Emulate, APipelineGathersNoParametersInVain) {
  const auto gathers = [](int64_t microbatches) {
    const Replay step =
        emulated(plan_of(mesh(
                     {{"pipeline_parallel", "2"}, {"data_parallel_shard", "2"}},
                     2 * microbatches,
                     pipeline_of("1F1B", 1, {{"parallelism.fsdp_reshard_after_forward", "\"always\""}}))))
            .step;
    std::vector<int64_t> calls;
    for (const RankTime& rank : step.ranks) {
      calls.push_back(rank.transfers.at({"fsdp", "all_gather"}).calls);
    }
    return calls;
  };
  const auto of_one = gathers(1);
  const auto of_eight = gathers(8);
  for (size_t rank = 0; rank < of_one.size(); ++rank) {
    EXPECT_LE(of_eight[rank], 8 * of_one[rank] + 2) << "rank " << rank;
  }
}

// Neither the first micro-batch nor the last backward waits for the gathers or reductions of each stage in turn.
TEST(Emulate, StagesGatherWhileTheyWaitAndReduceAtOnce) {
  const auto step_with = [](double gb_per_second) {
    const Overrides degrees{{"pipeline_parallel", "8"}, {"data_parallel_shard", "2"}};
    return emulated(plan_of(
                        mesh(degrees, 32, pipeline_of("1F1B", 1, kKeptWhole)),
                        {.ranks_per_node = 1, .network_gb_per_second = gb_per_second}))
        .step;
  };
  const Replay step = step_with(50);
  const TransferTime& gathers = step.ranks.back().transfers.at({"fsdp", "all_gather"});
  EXPECT_LT(gathers.exposed, 0.1 * gathers.seconds);
  double longest = 0;  // of a rank
  for (const RankTime& rank : step.ranks) {
    longest = std::max(
        longest,
        rank.transfers.at({"fsdp", "all_gather"}).seconds + rank.transfers.at({"fsdp", "reduce_scatter"}).seconds);
  }
  EXPECT_LT(step.step_seconds, step_with(1e6).step_seconds + 1.5 * longest);
}

TEST(Emulate, WritesATraceAndTimelines) {
  const plan::Plan plan = plan_of(mesh({{"pipeline_parallel", "2"}}, 4, pipeline_of("1F1B", 1)));
  const train::testing::Folder folder;
  write_emulation(emulated(plan), plan, folder.path());
  const Node trace = parse_json_file(folder.path() / "emulation_trace.json");
  EXPECT_GT(trace.at("traceEvents").size(), 16U);
  EXPECT_THAT(read_file(folder.path() / "emulation_trace.json"), HasSubstr("\"cat\":\"planned\""));
  EXPECT_THAT(read_file(folder.path() / "emulation_timeline.svg"), HasSubstr("emulated"));
  EXPECT_GT(parse_json_file(folder.path() / "emulation.json").at("step_seconds").as_double(), 0);
}

// Exposed communication is no bubble, as in the planned timeline; spans are those of the emulated actions.
TEST(Emulate, TheTimelineHasTheBubbleOfTheReplay) {
  const plan::Plan plan =
      plan_of(mesh({{"pipeline_parallel", "2"}, {"tensor_parallel", "4"}}, 4, pipeline_of("1F1B", 1)));
  const Emulation emulation = emulated(plan);
  double idle = 0;
  double longest = 0;
  for (const size_t first : {0, 4}) {  // the first rank of each stage
    const RankTime& rank = emulation.step.ranks[first];
    EXPECT_GT(rank.exposed("tp"), 0.02 * rank.end);
    idle += emulation.step.step_seconds - rank.computing - rank.exposed();
    std::vector<TimedRankAction> computing;
    for (const TimedRankAction& one : emulation.step.actions[first]) {
      if (one.action.is_compute()) {
        computing.push_back(one);
      }
    }
    longest = std::max(longest, computing.back().end - computing.front().start);
  }
  const double bubble = idle / (2 * emulation.step.step_seconds);
  const pipeline::Timeline timeline = emulated_timeline(emulation, plan);
  EXPECT_NEAR(timeline.bubble_share(), bubble, 1e-9);
  EXPECT_NEAR(
      timeline.bubble_share_without_barrier(),
      1 - (1 - bubble) * emulation.step.step_seconds / (longest + timeline.update),
      1e-9);
}

TEST(Emulate, RefusesWhatItCannotRun) {
  const auto refusal = [](const char* message,
                          const Overrides& overrides,
                          const plan::Machine& machine = {},
                          const plan::PlanOptions& options = {}) {
    const plan::Plan plan = plan_of(overrides, machine, options);
    EXPECT_THAT([&] { emulated(plan); }, ThrowsMessage<Error>(HasSubstr(message)));
  };
  refusal("optimizer.name", mesh({}, 1, {{"optimizer.name", "\"muon\""}}));
  refusal("machine.rank_deviation", mesh({}, 1), {.rank_deviation = 0.1});
  refusal("at most 256 ranks, found 512", mesh({{"data_parallel_shard", "512"}}, 512));
  refusal("--peer", mesh({}, 1), {}, {.peer = {.pointwise_bytes = 2}});
}

}  // namespace
}  // namespace lehr::emulate
