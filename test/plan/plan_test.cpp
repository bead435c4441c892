#include <gmock/gmock.h>

#include <map>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/config/json.h"
#include "lehr/pipeline/schedules.h"
#include "lehr/plan/make_plan.h"
#include "lehr/plan/report.h"
#include "lehr/plan/step_time.h"
#include "test/plan/support.h"

namespace lehr::plan {
namespace {

using ::testing::HasSubstr;
using testing::model_of;
using ::testing::ThrowsMessage;

Plan plan_of(const Overrides& overrides, const Machine& machine, const PlanOptions& options = {}) {
  const train::testing::Folder folder;
  const auto config = train::testing::tiny_run(folder.path(), overrides);
  const auto specs = train::testing::specs();
  return make_plan(config, specs.at(config.model), machine, options);
}

Overrides pipeline_of(int64_t ranks, int64_t microbatches, const std::string& schedule, const Overrides& more = {}) {
  Overrides overrides = model_of("qwen3");
  for (const auto& entry : Overrides{
           {"model.args.num_hidden_layers", "8"},
           {"parallelism.pipeline_parallel_degree", std::to_string(ranks)},
           {"parallelism.pipeline_parallel_schedule", "\"" + schedule + "\""},
           {"parallelism.data_parallel_shard_degree", "1"},
           {"training.local_batch_size", "1"},
           {"training.global_batch_size", std::to_string(microbatches)}}) {
    overrides.push_back(entry);
  }
  return train::testing::joined(overrides, more);
}

// Stages of equal cost; forward, dgrad and wgrad take the same time.
double bubble_of(const pipeline::ScheduleOptions& options) {
  const Machine machine{.memory_gb_per_second = 1e9};
  PlannedStage stage;
  stage.measured.num_layers = 1;
  for (auto action :
       {&StageMeasurement::forward, &StageMeasurement::backward_input, &StageMeasurement::backward_weight}) {
    (stage.measured.*action).matmul_flops = 1e15;
  }
  stage.measured.backward.matmul_flops = 2e15;
  const CostContext context{.machine = machine, .mesh = {.pipeline_parallel = options.num_ranks}};
  Machine quick = machine;
  quick.layer_overhead_us = 0;
  stage.cost = cost_of(stage.measured, 0, {.machine = quick, .mesh = context.mesh});
  const auto program = pipeline::build_program(options);
  const std::vector<const PlannedStage*> stages(static_cast<size_t>(program.num_stages()), &stage);
  return predict_step(program, stages, context).timeline.bubble_share();
}

// 1e-4: transfers of zero bytes still have their latency.
TEST(PredictStep, HasThePublishedBubbles) {
  EXPECT_NEAR(bubble_of({.num_ranks = 4, .num_microbatches = 8}), 3.0 / 11, 1e-4);
  EXPECT_NEAR(
      bubble_of(
          {.schedule = pipeline::Schedule::interleaved_1f1b,
           .num_ranks = 4,
           .num_stages_per_rank = 2,
           .num_microbatches = 8}),
      3.0 / 19,
      1e-4);
  EXPECT_NEAR(
      bubble_of({.schedule = pipeline::Schedule::zero_bubble_h1, .num_ranks = 4, .num_microbatches = 8}),
      3.0 / 27,
      1e-4);
}

TEST(MakePlan, WholeLogitsOfAPeerAreHeldByTheLastStage) {
  const Overrides run = model_of("qwen3");
  const Machine machine;
  const double parts = plan_of(run, machine).peak_bytes();
  const double whole = plan_of(run, machine, {.peer = {.logit_bytes = 1000}}).peak_bytes();
  EXPECT_GT(whole, 1000.0 * 256 * 512);
  EXPECT_LT(whole - parts, 1000.0 * 256 * 512);
}

// The first stage of a plan, which is the only one here.
StageMeasurement stage_of(const Overrides& overrides, const PeerDesign& peer) {
  return plan_of(overrides, Machine{}, {.peer = peer}).stages.at(0).measured;
}

TEST(MakePlan, RecomputationOfAPeerStopsBeforeTheDownProjection) {
  const auto with = [](const std::string& name, const std::string& mode) {
    return model_of(name, {{"activation_checkpoint.mode", "\"" + mode + "\""}});
  };
  const double down = 4 * 2.0 * 256 * 160 * 64;  // 4 layers, 256 tokens
  const PeerDesign peer{.stops_recompute = true};
  const StageMeasurement whole = stage_of(with("qwen3", "full"), {});
  const StageMeasurement stopped = stage_of(with("qwen3", "full"), peer);
  EXPECT_DOUBLE_EQ(whole.backward.matmul_flops - stopped.backward.matmul_flops, down);
  EXPECT_DOUBLE_EQ(whole.backward.recomputed_flops - stopped.backward.recomputed_flops, down);
  EXPECT_EQ(stopped.forward.matmul_flops, whole.forward.matmul_flops);
  // Experts' outputs are needed for the gradient of their weights.
  for (const auto& [name, mode] : {std::pair("qwen3", "none"), std::pair("qwen3_moe", "full")}) {
    EXPECT_EQ(
        stage_of(with(name, mode), peer).backward.matmul_flops, stage_of(with(name, mode), {}).backward.matmul_flops)
        << name;
  }
}

TEST(MakePlan, PiecesOfAPeersContextAreMerged) {
  const Overrides run = model_of(
      "qwen3", {{"parallelism.context_parallel_degree", "2"}, {"parallelism.data_parallel_shard_degree", "1"}});
  const auto moved = [&](double bytes) {
    return stage_of(run, {.context_merge_bytes = bytes}).forward.pointwise_bytes;
  };
  // 4 layers, 128 tokens of 4 heads of 16 elements, 2 pieces. Attention counts whole blocks of keys.
  EXPECT_NEAR(static_cast<double>(moved(100) - moved(0)), 100.0 * 4 * 128 * 64 * 2, 1e-2 * 100 * 4 * 128 * 64 * 2);
}

TEST(MakePlan, APeersWholeEmbeddingIsOnEachTensorParallelRank) {
  const Overrides run =
      model_of("qwen3", {{"parallelism.tensor_parallel_degree", "2"}, {"parallelism.data_parallel_shard_degree", "1"}});
  const StageMeasurement parts = stage_of(run, {});
  const StageMeasurement whole = stage_of(run, {.whole_embedding = true});
  EXPECT_NEAR(
      static_cast<double>(whole.parameter_bytes - parts.parameter_bytes), 4.0 * 512 * 64 / 2, 0.01 * 4 * 512 * 64);
  EXPECT_NEAR(
      static_cast<double>(whole.optimizer_bytes - parts.optimizer_bytes), 8.0 * 512 * 64 / 2, 0.01 * 8 * 512 * 64);
  EXPECT_EQ(whole.forward.pointwise_bytes, parts.forward.pointwise_bytes);
}

TEST(MakePlan, APeersGatheredLogitsCrossTheLinks) {
  Overrides run = model_of("qwen3");
  for (const auto& entry : Overrides{
           {"parallelism.tensor_parallel_degree", "2"},
           {"parallelism.data_parallel_shard_degree", "1"},
           {"training.global_batch_size", "1"}}) {
    run.push_back(entry);
  }
  Machine machine;
  const auto seconds = [&](bool gathered, double speed) {
    machine.node_gb_per_second = speed;
    return plan_of(run, machine, {.peer = {.logit_bytes = 8, .gathered_logits = gathered}}).step_seconds;
  };
  // Float32 logits of 256 tokens: half of them come from the other rank, at 0.7 of the links' speed.
  const double slower = seconds(true, 0.001) - seconds(true, 1e6) - (seconds(false, 0.001) - seconds(false, 1e6));
  EXPECT_NEAR(slower, 256 * 512 * 4 / 2 / 0.7e6, 1e-3 * slower);
}

TEST(MakePlan, GoodputIsThatOfItsSavesAndFailures) {
  Machine machine{.device_mtbf_hours = 1, .storage_gb_per_second = 1e-3};
  const auto overrides = pipeline_of(2, 4, "1F1B", {{"checkpoint.interval", "1000000000"}});
  const Plan plan = plan_of(overrides, machine);
  ASSERT_TRUE(plan.goodput);
  const GoodputPrediction& found = value_of(plan.goodput, "goodput");
  double most = 0;
  for (const PlannedStage& stage : plan.stages) {
    most = std::max(most, static_cast<double>(stage.measured.parameter_bytes + stage.measured.optimizer_bytes));
  }
  EXPECT_DOUBLE_EQ(found.checkpoint_bytes, most);
  EXPECT_DOUBLE_EQ(found.failures.mtbf, 1800);
  EXPECT_DOUBLE_EQ(found.failures.writing, most / 1e6);
  EXPECT_EQ(found.best_goodput, found.failures.goodput(found.best_interval));
  EXPECT_GT(found.best_goodput, found.goodput);
  EXPECT_DOUBLE_EQ(found.interval, 1e9 * plan.step_seconds);
  machine.device_mtbf_hours.reset();
  EXPECT_FALSE(plan_of(overrides, machine).goodput);
}

TEST(MakePlan, ASaveOfAdaptersIsWithoutTheirBase) {
  const auto overrides = model_of("qwen3", {{"peft.method", "lora"}, {"checkpoint.initial_load_path", "base"}});
  const Plan plan = plan_of(overrides, {.device_mtbf_hours = 1});
  const StageMeasurement& stage = plan.stages.front().measured;
  EXPECT_DOUBLE_EQ(
      value_of(plan.goodput, "goodput").checkpoint_bytes,
      static_cast<double>(stage.trained_bytes + stage.optimizer_bytes));
}

// A micro-batch keeps 60 of the 100 bytes that its forward takes at most; the backward takes no more than these.
TEST(MemoryByRank, CountsWhatAForwardKeepsAsActivations) {
  StageMeasurement stage;
  stage.forward = {.peak = 100, .kept = 60};
  stage.backward.peak = stage.first_backward_peak = stage.last_backward_peak = stage.only_backward_peak = 60;
  const pipeline::Program program = pipeline::build_program({.num_ranks = 1, .num_microbatches = 1});
  const pipeline::PipelineCosts costs{.forward = {1}, .backward_input = {1}, .backward_weight = {0}};
  const auto memory = memory_by_rank(pipeline::simulate(program, costs), {&stage}, /*splits_backward=*/false);
  EXPECT_EQ(memory[0].peak.total(), 100);
  EXPECT_EQ(memory[0].peak[MemoryKind::activations], 60);
  EXPECT_EQ(memory[0].peak[MemoryKind::workspace], 40);
}

TEST(MakePlan, TimeSharesSumToTheStep) {
  const Plan plan = plan_of(
      pipeline_of(
          2, 8, "1F1B", {{"parallelism.data_parallel_shard_degree", "2"}, {"training.global_batch_size", "16"}}),
      load_machine("cpu"));
  double sum = 0;
  for (const TimeShare& share : plan.time) {
    sum += share.seconds;
  }
  EXPECT_NEAR(sum, plan.step_seconds, 1e-5 * plan.step_seconds);  // shares below a millionth are left out
  EXPECT_GT(plan.bubble_share, 0);
  EXPECT_NEAR(plan.tokens_per_second, 16 * 256 / plan.step_seconds, 1e-6 * plan.tokens_per_second);
  EXPECT_EQ(plan.run.mesh.world_size(), 4);
}

TEST(MakePlan, MfuIsModelFlopsOverThePeak) {
  const Machine machine = load_machine("cpu");
  const Plan plan = plan_of(model_of("llama3"), machine);
  const double flops = static_cast<double>(plan.counts.causal_flops_per_token) * 4 * 256 / plan.step_seconds;
  EXPECT_NEAR(plan.mfu, flops / (machine.tflops_float32 * 1e12), 1e-9);
  EXPECT_LT(plan.mfu, machine.achieved_fraction);
}

// The number before `unit` in a report.
double printed(const std::string& report, const std::string& unit) {
  const size_t end = report.find(unit);
  const size_t begin = report.rfind(' ', end - 1);
  return end == std::string::npos ? 0 : std::stod(report.substr(begin + 1, end - begin - 1));
}

// The MFU is that of the peak in the line "machine", for each dtype. 1 %: four digits of the one, three of the other.
TEST(MakePlan, MfuDividesByThePeakThatTheReportPrints) {
  for (const auto& [dtype, changes] : std::map<std::string, Overrides>{
           {"float32", {}}, {"bfloat16", {{"training.mixed_precision_param", "bfloat16"}}}}) {
    SCOPED_TRACE(dtype);
    const Plan plan = plan_of(model_of("llama3", changes), load_machine("cpu"));
    const std::string report = report_text(plan);
    const double flops = static_cast<double>(plan.counts.causal_flops_per_token) * plan.tokens_per_second;
    const double peak = 1e12 * printed(report, " TFLOP/s in " + dtype);
    EXPECT_NEAR(flops / peak, printed(report, " % of the peak") / 100, 0.01 * plan.mfu);
  }
}

// The number before `unit` in the first line of a report that begins with `name`.
double of_line(const std::string& report, const std::string& name, const std::string& unit) {
  const size_t begin = report.find("\n" + name + " ");
  EXPECT_NE(begin, std::string::npos) << name;
  return begin == std::string::npos ? 0 : printed(report.substr(begin, report.find('\n', begin + 1) - begin), unit);
}

// 1 %: three digits are printed. The memory of a small model would have fewer.
TEST(MakePlan, TheReportPrintsThePlansFigures) {
  Plan plan = plan_of(model_of("llama3"), load_machine("cpu"));
  for (double& bytes : plan.memory[plan.fullest_rank].peak.bytes) {
    bytes *= 1e4;
  }
  const std::string report = report_text(plan);
  const auto expect = [&](const char* name, const char* unit, double wanted) {
    EXPECT_NEAR(of_line(report, name, unit), wanted, 0.01 * wanted) << report;
  };
  expect("step", " ms,", 1e3 * plan.step_seconds);
  expect("step", " K tokens/s,", 1e-3 * plan.tokens_per_second);
  expect("step", " K per device", 1e-3 * plan.tokens_per_second);
  expect("MFU", " % of the peak", 100 * plan.mfu);
  expect("memory", " of ", 1e-9 * plan.peak_bytes());
  expect("machine", " GB/s", plan.machine.memory_gb_per_second);
}

// The plan measures the FLOPs of its stage by operators, on its own way: all of them, if nothing is recomputed.
TEST(MakePlan, MfuIsThatOfTheMeasuredFlops) {
  const std::string layer = R"('.*layers\.[23]\..*_proj')";
  for (const Overrides& changes :
       {Overrides{},
        Overrides{{"peft.method", "lora"}, {"checkpoint.initial_load_path", "base"}},
        Overrides{{"peft.method", "lora"}, {"peft.target_pattern", layer}, {"checkpoint.initial_load_path", "base"}},
        Overrides{{"peft.method", "full_tune"}, {"peft.full_tune_pattern", "lm_head"}}}) {
    SCOPED_TRACE(changes.empty() ? "all" : changes.back().second);
    auto overrides = model_of("qwen3", changes);
    overrides.emplace_back("model.args.tie_word_embeddings", "false");
    overrides.emplace_back("activation_checkpoint.mode", "none");
    overrides.emplace_back("training.seq_len", "1024");
    const Plan plan = plan_of(overrides, load_machine("cpu"));
    ASSERT_EQ(plan.stages.size(), 1U);
    const StageMeasurement& stage = plan.stages.front().measured;
    const double flops = (stage.forward.flops() + stage.backward.flops()) * static_cast<double>(plan.run.microbatches);
    const double peak = plan.machine.tflops_float32 * 1e12;
    // Only the diagonal of attention, and the weights of norms in the formula for whole models, differ.
    EXPECT_NEAR(plan.mfu * peak * plan.step_seconds / flops, 1, changes.empty() ? 0.01 : 0.001);
  }
}

TEST(MakePlan, MemoryFitsUntilTheDeviceIsTooSmall) {
  Machine machine = load_machine("cpu");
  // "auto" would recompute to fit.
  const auto overrides = model_of("qwen3", {{"activation_checkpoint.mode", "none"}});
  const Plan roomy = plan_of(overrides, machine);
  EXPECT_TRUE(roomy.fits());
  const double peak = roomy.peak_bytes();
  machine.reserved_gb = 0;
  machine.memory_gb = 1.001 * peak / 1e9;
  EXPECT_TRUE(plan_of(overrides, machine).fits());
  machine.memory_gb = 0.999 * peak / 1e9;
  const Plan tight = plan_of(overrides, machine);
  EXPECT_FALSE(tight.fits());
  EXPECT_THAT(report_text(tight), HasSubstr("DOES NOT FIT"));
}

TEST(MakePlan, MemoryOnOneDeviceIsThatOfTheMeasurement) {
  const auto overrides = model_of("qwen3", {{"activation_checkpoint.mode", "selective"}});
  const testing::Planned planned(overrides);
  const StageMeasurement measured = planned.on_meta();
  const Plan plan = plan_of(overrides, load_machine("cpu"));
  // The peak of the first backward includes its own gradients; for later ones they are memory at rest.
  const double wanted = static_cast<double>(
      measured.at_rest() + plan.run.microbatches * measured.batch_bytes +
      std::max(
          {measured.last_backward_peak,
           measured.forward.peak,
           measured.first_backward_peak - measured.gradient_bytes}));
  EXPECT_DOUBLE_EQ(plan.peak_bytes(), wanted);
  EXPECT_DOUBLE_EQ(plan.memory[0].peak[MemoryKind::optimizer], static_cast<double>(measured.optimizer_bytes));
}

TEST(MakePlan, EarlierRanksOf1F1BHoldMoreMicrobatches) {
  const Plan plan = plan_of(pipeline_of(4, 8, "1F1B"), load_machine("cpu"));
  const auto activations = [&](size_t rank) { return plan.memory[rank].peak[MemoryKind::activations]; };
  EXPECT_GT(activations(1), 1.3 * activations(2));
  const Plan all = plan_of(pipeline_of(4, 8, "GPipe"), load_machine("cpu"));
  EXPECT_GT(all.memory[2].peak[MemoryKind::activations], 2 * activations(2));
}

TEST(MakePlan, BoundaryBuffersAreFreed) {
  const Plan plan = plan_of(pipeline_of(4, 8, "1F1B"), load_machine("cpu"));
  for (const RankMemory& rank : plan.memory) {
    double most = 0;
    for (const MemoryMoment& moment : rank.moments) {
      most = std::max(most, moment.held[MemoryKind::boundary]);
    }
    EXPECT_GT(most, 0);
    EXPECT_EQ(rank.moments.back().held[MemoryKind::boundary], 0);
    EXPECT_LE(rank.moments.back().held[MemoryKind::workspace], 0);
  }
}

TEST(MakePlan, ComparesSchedulesAndWarnsOfASlowerOne) {
  const Plan plan = plan_of(pipeline_of(4, 8, "GPipe"), load_machine("h100"));
  EXPECT_GT(plan.schedules.size(), 5U);
  const auto configured = std::find_if(
      plan.schedules.begin(), plan.schedules.end(), [](const SchedulePrediction& one) { return one.configured; });
  ASSERT_NE(configured, plan.schedules.end());
  EXPECT_EQ(configured->name, "GPipe");
  EXPECT_DOUBLE_EQ(configured->step_seconds, plan.step_seconds);
  // If the cost of every layer is mostly its fixed part, splitting backward doubles that part.
  Machine slow_to_start = load_machine("h100");
  slow_to_start.layer_overhead_us = 1e5;
  const Plan halves = plan_of(pipeline_of(2, 16, "ZBH1"), slow_to_start);
  EXPECT_THAT(report_text(halves), HasSubstr("slower than 1F1B"));
}

TEST(MakePlan, BalancingByCostIsFasterIfTheHeadIsCostly) {
  const Overrides large{{"model.args.vocab_size", "4096"}};
  Overrides by_cost = large;
  by_cost.emplace_back("parallelism.pipeline_parallel_balance", "cost");
  Machine machine = load_machine("h100");
  machine.layer_overhead_us = 0;  // else the overheads would dominate this small model
  const Plan even = plan_of(pipeline_of(4, 16, "1F1B", large), machine);
  const Plan spread = plan_of(pipeline_of(4, 16, "1F1B", by_cost), machine);
  EXPECT_EQ(even.layers_by_stage(), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(spread.layers_by_stage(), (std::vector<int64_t>{3, 2, 2, 1}));
  EXPECT_LT(spread.step_seconds, 0.98 * even.step_seconds);
  EXPECT_THAT(report_text(even), HasSubstr("\"cost\" (layers by stage: 3, 2 x 2, 1) is predicted"));
  EXPECT_THAT(report_text(spread), HasSubstr("layers     3, 2 x 2, 1 by stage"));
  EXPECT_THAT(report_text(spread), ::testing::Not(HasSubstr("pipeline_parallel_balance")));
}

TEST(MakePlan, RefusesConfigsThatTheTrainerRefuses) {
  const Machine machine = load_machine("h100");
  const auto refuses = [&](const Overrides& changes, const std::string& text, int64_t devices = 0) {
    EXPECT_THAT(
        [&] { plan_of(model_of("qwen3", changes), machine, {.devices = devices}); },
        ThrowsMessage<Error>(HasSubstr(text)))
        << text;
  };
  refuses({{"parallelism.tensor_parallel_degree", "2"}}, "parallelism.data_parallel_shard_degree: -1");
  refuses({{"parallelism.tensor_parallel_degree", "2"}}, "which does not divide the 3", 3);
  refuses({{"parallelism.data_parallel_shard_degree", "3"}}, "training.global_batch_size");
  refuses(
      {{"parallelism.data_parallel_shard_degree", "2"}, {"parallelism.expert_parallel_degree", "2"}},
      "parallelism.expert_parallel_degree");
  refuses(
      {{"parallelism.data_parallel_shard_degree", "1"},
       {"parallelism.pipeline_parallel_degree", "2"},
       {"parallelism.pipeline_parallel_schedule", "\"1FB1\""}},
      "parallelism.pipeline_parallel_schedule");
}

TEST(MakePlan, WritesAReportAndItsPictures) {
  const train::testing::Folder folder;
  const Plan plan = plan_of(pipeline_of(2, 8, "1F1B"), load_machine("cpu"));
  write_plan(plan, folder.path() / "plan");
  const Node json = parse_json_file(folder.path() / "plan" / "plan.json");
  EXPECT_EQ(json.at("step_seconds").as_double(), plan.step_seconds);
  EXPECT_EQ(json.at("tokens_per_second").as_double(), plan.tokens_per_second);
  EXPECT_EQ(json.at("mfu").as_double(), plan.mfu);
  EXPECT_EQ(json.at("ranks").size(), 2U);
  EXPECT_EQ(json.at("ranks").at(0).at("peak").at("sum").as_double(), plan.memory[0].peak.total());
  for (const char* file : {"memory.svg", "memory.html", "timeline.svg", "timeline.html"}) {
    EXPECT_THAT(read_file(folder.path() / "plan" / file), HasSubstr("<svg")) << file;
  }
  EXPECT_EQ(read_file(folder.path() / "plan" / "report.txt"), report_text(plan));
}

// The picture is drawn from the timeline.
TEST(MakePlan, TheTimelineHasTheMemoryOfTheRanks) {
  const Plan plan = plan_of(pipeline_of(2, 8, "1F1B"), load_machine("cpu"));
  ASSERT_EQ(plan.timeline.memory.size(), 2U);
  const std::vector<double> peaks = plan.timeline.peak_memory();
  for (size_t rank = 0; rank < plan.memory.size(); ++rank) {
    EXPECT_GT(peaks[rank], 0);
    EXPECT_EQ(peaks[rank], plan.memory[rank].peak.total()) << rank;
  }
}

TEST(MakePlan, ManyReplicasArePlannedQuickly) {
  const Plan plan = plan_of(
      pipeline_of(
          4,
          4 * 4096,
          "1F1B",
          {{"parallelism.data_parallel_replicate_degree", "2048"}, {"parallelism.data_parallel_shard_degree", "2"}}),
      load_machine("h100"),
      {.compare_schedules = false});
  EXPECT_EQ(plan.run.mesh.world_size(), 16384);
  EXPECT_EQ(plan.memory.size(), 4U);
}

}  // namespace
}  // namespace lehr::plan
