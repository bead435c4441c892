#include "lehr/plan/search.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/plan/mesh_stages.h"
#include "lehr/plan/search_space.h"
#include "lehr/plan/stage_pieces.h"
#include "test/plan/support.h"
#include "test/train/mesh_support.h"

namespace lehr::plan {
namespace {

using ::testing::HasSubstr;
using testing::model_of;
using ::testing::ThrowsMessage;

Overrides small_run(const Overrides& changes = {}) {
  Overrides overrides{{"training.local_batch_size", "1"}, {"training.global_batch_size", "32"}};
  return model_of("qwen3", train::testing::joined(overrides, changes));
}

SearchResult search_of(const Overrides& overrides, const Machine& machine, const SearchOptions& options) {
  const train::testing::Folder folder;
  const auto config = train::testing::tiny_run(folder.path(), overrides);
  const auto specs = train::testing::specs();
  return search_plans(config, specs.at(config.model), machine, options);
}

// A machine without fixed costs, so that the given bandwidths decide.
Machine machine_with(double node, double network) {
  Machine machine = load_machine("cpu");
  machine.layer_overhead_us = 0;
  machine.node_latency_us = machine.network_latency_us = 0;
  machine.node_gb_per_second = node;
  machine.network_gb_per_second = network;
  machine.communication_overlap = 1;
  return machine;
}

TEST(AllMeshes, HaveTheNumberOfDevicesAndDivideTheBatch) {
  train::TrainConfig config;
  config.training.global_batch_size = 32;
  config.training.seq_len = 256;
  config.parallelism.expert_parallel_parts = 4;
  const auto points = all_meshes(config, 16, 4, 12, {1, 2});
  for (const MeshPoint& point : points) {
    EXPECT_NO_THROW(point.mesh.check(16));
    EXPECT_LE(point.mesh.pipeline_parallel, 4);
    EXPECT_EQ(
        point.microbatches * point.rows * point.mesh.data_parallel_replicate * point.mesh.data_parallel_shard, 32);
    const int64_t ep = point.mesh.expert_parallel;  // of 12 experts
    if (12 % ep == 0) {
      EXPECT_EQ(point.expert_parts, ep == 2 ? 2 : 1) << ep;
    }
  }
  EXPECT_GT(points.size(), 100U);
}

TEST(SearchPlans, SlowLinksFavourReplicas) {
  // One all-gather of the weights per micro-batch costs more than all else; the gradients are sent once.
  const SearchResult result = search_of(small_run(), machine_with(0.001, 0.001), {.devices = 4});
  ASSERT_FALSE(result.best.empty());
  const auto& mesh = result.best.front().plan.run.mesh;
  EXPECT_EQ(mesh.tensor_parallel * mesh.context_parallel * mesh.data_parallel_shard, 1) << mesh.describe();
}

TEST(SearchPlans, WithoutMemoryForReplicasWeightsAreSharded) {
  Machine machine = machine_with(1000, 1000);
  const SearchResult roomy = search_of(small_run({{"model.args.intermediate_size", "40960"}}), machine, {.devices = 4});
  ASSERT_FALSE(roomy.best.empty());
  // Memory for less than one whole copy of weights, gradients and moments: 4 x 4 bytes per parameter.
  const double copy = 16 * static_cast<double>(roomy.best.front().plan.counts.num_parameters);
  machine.reserved_gb = 0;
  machine.memory_gb = 0.9 * copy / 1e9;
  const SearchResult result =
      search_of(small_run({{"model.args.intermediate_size", "40960"}}), machine, {.devices = 4});
  ASSERT_FALSE(result.best.empty());
  for (const Candidate& one : result.best) {
    EXPECT_LT(one.plan.run.mesh.data_parallel_replicate, 4);
    EXPECT_TRUE(one.plan.fits());
  }
}

// With LEHR_ALL_MESHES=1 of four devices, on which there are some 20 times as many plans.
TEST(SearchPlans, FindsTheFastestPlanThatFits) {
  const int64_t devices = train::testing::all_meshes() ? 4 : 2;
  Machine machine = machine_with(1, 0.2);
  machine.reserved_gb = 0;
  const train::testing::Folder folder;
  const auto config = train::testing::tiny_run(
      folder.path(), small_run({{"training.seq_len", "1024"}, {"model.args.max_position_embeddings", "1024"}}));
  const auto specs = train::testing::specs();
  const auto& spec = specs.at(config.model);
  // Every way to use the devices, planned in full.
  std::vector<std::pair<double, double>> all;  // bytes, tokens/s
  for (const MeshPoint& point : all_meshes(config, devices, devices, 0, {1})) {
    for (const Trade& trade : all_trades(point)) {
      for (const auto& schedule : all_schedules_of(point, devices)) {
        try {
          const Plan plan =
              make_plan(with_choices(config, point, trade, schedule), spec, machine, {.compare_schedules = false});
          all.emplace_back(plan.peak_bytes(), plan.tokens_per_second);
        } catch (const Error&) {  // the trainer refuses it
        }
      }
    }
  }
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  for (const double part : {2.0, 1.0, 0.5, 0.2}) {  // memory between the least and the most demanding plan, and beyond
    const double room = least->first + part * (most->first - least->first);
    SCOPED_TRACE(room);
    const auto best_within = [&](double bytes) {
      double best = 0;
      for (const auto& [taken, tokens] : all) {
        best = taken <= bytes ? std::max(best, tokens) : best;
      }
      return best;
    };
    machine.memory_gb = room / 1e9;
    const SearchResult result = search_plans(config, spec, machine, {.devices = devices, .best = 3});
    ASSERT_EQ(result.best.size(), 3U);
    // 2 % of time and 3 % of memory: the search adds stages up from pieces before the best are planned in full.
    EXPECT_GE(result.best.front().plan.tokens_per_second, 0.98 * best_within(part > 1 ? room : 0.97 * room));
    EXPECT_LE(result.best.front().plan.tokens_per_second, 1.000001 * best_within(room));
  }
}

// The bound by which a search leaves meshes out.
void expect_bounds_below_steps(const Overrides& overrides, const Machine& machine) {
  const train::testing::Folder folder;
  const auto config = train::testing::tiny_run(folder.path(), overrides);
  const auto specs = train::testing::specs();
  const auto& spec = specs.at(config.model);
  MeshStages stages(config, spec, machine);
  stages.set_layers(config.model.args.num_hidden_layers.value());
  int64_t compared = 0;
  double closest = 0;
  for (const MeshPoint& point : all_meshes(config, 4, 4, config.model.name == "qwen3_moe" ? 8 : 0, {1})) {
    if (point.mesh.data_parallel_shard * point.mesh.context_parallel == 1) {
      continue;  // without FSDP's casts, which the measured pieces have
    }
    const Trade trade{.checkpointing = "none", .reduce_each = false};
    const Plan plan = make_plan(
        with_choices(config, point, trade, all_schedules_of(point, 4).front()),
        spec,
        machine,
        {.compare_schedules = false});
    const auto tokens = static_cast<double>(config.training.global_batch_size * config.training.seq_len);
    const double step = tokens / plan.tokens_per_second;
    EXPECT_LE(stages.least_seconds(point), step) << point.mesh.describe();
    closest = std::max(closest, stages.least_seconds(point) / step);
    ++compared;
  }
  EXPECT_GT(compared, 5);
  EXPECT_GT(closest, 0.6);
}

// The links are fast and float8 is a hundred times as fast as float32, so that a bound for float32 would be above most
// steps.
TEST(MeshStages, LeastSecondsAreBelowAStepInFloat8) {
  Machine machine = machine_with(1e6, 1e6);
  machine.tflops_float8 = 1e-10 * machine.peak_flops(at::kFloat);
  expect_bounds_below_steps(
      small_run(
          {{"float8.enable", "true"},
           {"model.args.hidden_size", "256"},
           {"model.args.intermediate_size", "1024"},
           {"model.args.num_key_value_heads", "4"}}),
      machine);
}

// Large experts with few tokens: a rank adds up the gradients of its own experts only, which takes most of a step.
TEST(MeshStages, LeastSecondsAreBelowAStepOfExperts) {
  expect_bounds_below_steps(
      model_of(
          "qwen3_moe",
          {{"training.local_batch_size", "1"},
           {"training.global_batch_size", "32"},
           {"training.seq_len", "64"},
           {"model.args.num_key_value_heads", "4"},
           {"model.args.moe_intermediate_size", "1024"}}),
      machine_with(1e6, 1e6));
}

TEST(AllTrades, AreOrderedByTheAmountOfRecompute) {
  std::vector<std::string> ways;
  for (const Trade& trade : all_trades({})) {
    ways.push_back(trade.checkpointing);
    EXPECT_TRUE(trade.reduce_each);  // nothing to reduce
  }
  EXPECT_THAT(ways, ::testing::ElementsAre("none", "op 2", "2", "op", "full"));
  const auto shared = all_trades({.mesh = {.data_parallel_shard = 2}, .microbatches = 2});
  EXPECT_EQ(shared.size(), 5U * 3 * 2);
  EXPECT_FALSE(shared.front().reduce_each);
  EXPECT_EQ(all_trades({.mesh = {.data_parallel_shard = 2}, .microbatches = 1}).size(), 5U * 3);
}

TEST(SearchPlans, BalancesLayersAsConfigured) {
  const auto best_pipeline = [](const char* balance) {
    const Overrides large{
        {"model.args.num_hidden_layers", "8"},
        {"model.args.vocab_size", "4096"},
        {"parallelism.pipeline_parallel_balance", balance}};
    const SearchResult all = search_of(small_run(large), machine_with(1, 1), {.devices = 4, .best = 1000});
    const auto found = std::find_if(all.best.begin(), all.best.end(), [](const Candidate& one) {
      return one.plan.run.mesh.pipeline_parallel == 4;
    });
    EXPECT_NE(found, all.best.end());
    return found->plan.tokens_per_second;
  };
  EXPECT_GT(best_pipeline("cost"), 1.02 * best_pipeline("even"));
}

// Over slow links a step that reduces its gradients once is faster. FindsTheFastestPlanThatFits has less memory.
TEST(SearchPlans, ReducesGradientsOncePerStep) {
  const SearchResult result = search_of(small_run(), machine_with(1, 0.01), {.devices = 2});
  const auto sharded = std::find_if(result.best.begin(), result.best.end(), [](const Candidate& one) {
    return one.plan.run.mesh.data_parallel_shard == 2;
  });
  ASSERT_NE(sharded, result.best.end());
  EXPECT_FALSE(sharded->config.parallelism.fsdp_reduce_each_microbatch);
}

TEST(SearchPlans, ReturnsTheBestFirstAndEachMeshOnce) {
  const SearchResult result = search_of(small_run(), machine_with(1, 0.2), {.devices = 8, .microbatch_rows = {1, 2}});
  std::set<std::string> meshes;
  for (size_t i = 0; i < result.best.size(); ++i) {
    EXPECT_TRUE(meshes.insert(result.best[i].plan.run.mesh.describe()).second);
    if (i > 0) {
      EXPECT_LE(result.best[i].plan.tokens_per_second, result.best[i - 1].plan.tokens_per_second);
    }
  }
  EXPECT_THAT(search_text(result, load_machine("cpu")), HasSubstr("[parallelism]"));
}

TEST(SearchPlans, ReportsTheLeastMemoryIfNothingFits) {
  Machine machine = machine_with(1, 1);
  machine.reserved_gb = 0;
  machine.memory_gb = 1e-5;
  const SearchResult result = search_of(small_run(), machine, {.devices = 2});
  EXPECT_TRUE(result.best.empty());
  EXPECT_GT(result.least_bytes, 1e4);
  EXPECT_THAT(search_text(result, machine), HasSubstr("nothing fits"));
}

TEST(SearchPlans, RefusesInvalidInputByName) {
  const Machine machine = load_machine("cpu");
  const auto refuses = [&](const Overrides& changes, const SearchOptions& options, const std::string& text) {
    EXPECT_THAT([&] { search_of(small_run(changes), machine, options); }, ThrowsMessage<Error>(HasSubstr(text)));
  };
  refuses({{"training.global_batch_size", "-1"}}, {.devices = 2}, "training.global_batch_size");
  refuses({}, {.devices = 0}, "--devices");
  refuses({}, {.devices = 2, .microbatch_rows = {0}}, "micro-batches of at least 1 sequence");
  refuses({{"training.global_batch_size", "7"}}, {.devices = 32, .microbatch_rows = {4}}, "no mesh of 32 devices");
}

// `tolerance` is relative.
void expect_same_stage(const StageMeasurement& made, const StageMeasurement& whole, double tolerance) {
  const auto same = [&](double a, double b) { EXPECT_NEAR(a, b, tolerance * std::abs(b)); };
  same(made.forward.flops(), whole.forward.flops());
  same(made.weights.active, whole.weights.active);
  EXPECT_NEAR(made.weights.float8_share(), whole.weights.float8_share(), 1e-12);
  same(made.backward.flops(), whole.backward.flops());
  same(static_cast<double>(made.at_rest()), static_cast<double>(whole.at_rest()));
  same(static_cast<double>(made.forward.kept), static_cast<double>(whole.forward.kept));
  same(static_cast<double>(made.forward.pointwise_bytes), static_cast<double>(whole.forward.pointwise_bytes));
  same(static_cast<double>(made.whole_gradient_bytes), static_cast<double>(whole.whole_gradient_bytes));
}

TEST(StagePieces, AddUpToStagesThatAreMeasuredInFull) {
  struct Checkpointing {
    const char *mode, *option, *reduce_each;
  };
  for (const auto& [mode, option, reduce_each] :
       {Checkpointing{"none", "\"2\"", "true"},
        Checkpointing{"none", "\"2\"", "false"},
        Checkpointing{"selective", "\"op\"", "true"},
        Checkpointing{"full", "\"2\"", "true"}}) {
    for (const int64_t stages : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} {} {}, {} stages", mode, option, reduce_each, stages));
      const testing::Planned planned(model_of(
          "qwen3",
          {{"parallelism.data_parallel_shard_degree", "4"},
           {"parallelism.tensor_parallel_degree", "2"},
           {"parallelism.pipeline_parallel_degree", std::to_string(stages)},
           {"model.args.num_hidden_layers", std::to_string(4 * stages)},
           {"model.args.tie_word_embeddings", "false"},
           {"model.args.hidden_size", "2048"},
           {"model.args.intermediate_size", "6144"},
           {"model.args.num_attention_heads", "16"},
           {"model.args.num_key_value_heads", "8"},
           {"model.args.head_dim", "128"},
           {"model.args.max_position_embeddings", "8192"},
           {"training.seq_len", "8192"},
           {"activation_checkpoint.mode", mode},
           {"activation_checkpoint.selective_ac_option", option},
           {"parallelism.fsdp_reduce_each_microbatch", reduce_each},
           {"training.local_batch_size", "2"},
           {"training.global_batch_size", "24"},
           {"training.mixed_precision_param", "bfloat16"}}));
      const StagePieces pieces(planned.config, planned.spec);
      for (int64_t stage = 0; stage < stages; ++stage) {
        StagePlace place{.stage = stage, .rank_of_stage = {}, .world_size = 8 * stages};
        for (int64_t rank = 0; rank < stages; ++rank) {
          place.rank_of_stage.push_back(rank);
        }
        const StageShape shape{.layers = 4, .first = stage == 0, .last = stage + 1 == stages};
        // 5 %: sizes are linear in rows except those that do not grow with rows (tables of positions, copies of
        // weights) and those that are rounded up for the ranks that share them. 10 % for a single stage: it is added up
        // from a first and a last stage, each of which saves something for the other.
        expect_same_stage(pieces.stage(shape, 4, 1), planned.on_meta(place), stages == 1 ? 0.1 : 0.05);
      }
    }
  }
}

// Units that stay unsharded take the same memory on any number of ranks, and so do unreduced gradients.
TEST(StagePieces, HaveTheUnshardedMemoryOfWholeStagesOnMoreRanks) {
  at::globalContext().setDeterministicAlgorithms(true, false);  // matmuls of lehr::mm on every CPU
  const testing::Planned planned(model_of(
      "qwen3",
      {{"parallelism.data_parallel_shard_degree", "16"},
       {"parallelism.pipeline_parallel_degree", "3"},
       {"parallelism.fsdp_reshard_after_forward", "\"never\""},
       {"parallelism.fsdp_reduce_each_microbatch", "false"},
       {"model.args.num_hidden_layers", "6"},
       {"model.args.hidden_size", "512"},
       {"model.args.intermediate_size", "2048"},
       {"training.local_batch_size", "1"},
       {"training.global_batch_size", "96"}}));
  const StagePieces pieces(planned.config, planned.spec);
  const StageMeasurement whole = planned.on_meta({.stage = 1, .rank_of_stage = {0, 1, 2}, .world_size = 48});
  StageMeasurement made = pieces.stage({.layers = 2, .first = false, .last = false}, 16, 1);
  StagePieces::change_policy(made, shard::ReshardPolicy::never, /*pipelined=*/true);
  const auto same = [](int64_t a, int64_t b, double tolerance) {
    EXPECT_NEAR(static_cast<double>(a), static_cast<double>(b), tolerance * static_cast<double>(b));
  };
  same(made.gathered_after_forward, whole.gathered_after_forward, 0.01);
  same(made.whole_gradient_bytes, whole.whole_gradient_bytes, 0.01);
  same(made.gradient_bytes, whole.gradient_bytes, 0.01);
  same(made.forward.pointwise_bytes, whole.forward.pointwise_bytes, 0.02);
  same(made.first_backward_peak, whole.first_backward_peak, 0.06);  // two units are unsharded in another order
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// Shares of FLOPs in float8 follow the keys: those of linear layers do not count experts, whose own share is that of
// float8.moe_fqns, but for the router. The head, which has no float8, is in one stage only, and layers of experts have
// few other weights.
TEST(StagePieces, HaveTheSharesOfFloat8OfWholeStages) {
  struct Case {
    const char* moe_fqns;
    const char* exclude;
    double experts;
  };
  const std::string all = R"(['.*\.grouped_experts\..*'])";
  for (const Case& one :
       {Case{"[]", "[]", 0},
        {all.c_str(), "[]", 1},
        {all.c_str(), R"(['.*\.o_proj'])", 1},
        {R"(['.*\.down_proj'])", "[]", 1.0 / 3}}) {
    SCOPED_TRACE(fmt::format("{} {}", one.moe_fqns, one.exclude));
    const testing::Planned planned(model_of(
        "qwen3_moe",
        {{"float8.enable", "true"},
         {"float8.moe_fqns", one.moe_fqns},
         {"float8.exclude", one.exclude},
         {"model.args.num_hidden_layers", "6"},
         {"model.args.tie_word_embeddings", "false"},
         {"model.args.vocab_size", "4096"},
         {"model.args.moe_intermediate_size", "64"},
         {"model.args.intermediate_size", "64"},
         {"parallelism.data_parallel_shard_degree", "4"},
         {"parallelism.pipeline_parallel_degree", "3"},
         {"training.local_batch_size", "2"},
         {"training.global_batch_size", "24"}}));
    const StagePieces pieces(planned.config, planned.spec);
    for (int64_t stage = 0; stage < 3; ++stage) {
      const StageMeasurement whole = planned.on_meta({.stage = stage, .rank_of_stage = {0, 1, 2}, .world_size = 12});
      const StageMeasurement made = pieces.stage({.layers = 2, .first = stage == 0, .last = stage == 2}, 4, 1);
      const double share = whole.weights.float8_expert_share();
      EXPECT_LE(share, one.experts);
      EXPECT_GE(share, 0.9 * one.experts);
      EXPECT_NEAR(made.weights.float8_expert_share(), share, 1e-12);
      EXPECT_NEAR(made.weights.float8_share(), whole.weights.float8_share(), 1e-12) << stage;
      EXPECT_NEAR(made.weights.expert_share(), whole.weights.expert_share(), 1e-3) << stage;
      if (stage == 2) {
        EXPECT_LT(whole.weights.float8_share(), 0.3) << "the head";
      } else if (one.exclude == std::string("[]")) {
        EXPECT_NEAR(whole.weights.float8_share(), 1, 1e-12);
      } else {
        EXPECT_LT(whole.weights.float8_share(), 0.9);
      }
    }
  }
}

// Shared experts are linear layers: float8.enable is for them, and float8.moe_fqns for the others.
TEST(StageMeasurement, CountsSharedExpertsInFloat8AmongExperts) {
  for (const bool all : {false, true}) {
    const testing::Planned planned(model_of(
        "qwen3_next",
        {{"float8.enable", "true"},
         {"float8.moe_fqns", all ? R"(['.*\.grouped_experts\..*'])" : "[]"},
         {"model.args.num_experts", "8"},
         {"model.args.num_experts_per_tok", "2"},
         {"model.args.moe_intermediate_size", "64"},
         {"model.args.shared_expert_intermediate_size", "128"}}));
    const double found =
        planned.on_meta({.stage = 0, .rank_of_stage = {0}, .world_size = 1}).weights.float8_expert_share();
    const double shared = 3 * 128, routed = 3 * 2 * 64, gates = 8 + 1;  // per feature of the residual stream
    EXPECT_NEAR(found, ((all ? routed : 0) + shared) / (routed + shared + gates), 1e-12);
  }
}

}  // namespace
}  // namespace lehr::plan
