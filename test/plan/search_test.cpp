#include "lehr/plan/search.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/plan/mesh_stages.h"
#include "lehr/plan/search_space.h"
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

TEST(SearchPlans, RefusesLayersThatDiffer) {
  const auto refuses = [](const std::string& family, const Overrides& changes, const std::string& text) {
    const Overrides batch{{"training.global_batch_size", "32"}};
    EXPECT_THAT(
        [&] {
          search_of(model_of(family, train::testing::joined(batch, changes)), load_machine("cpu"), {.devices = 2});
        },
        ThrowsMessage<Error>(::testing::AllOf(HasSubstr("lehr plan --search"), HasSubstr(text))));
  };
  const std::string differ = "one measured layer stands for all layers, but the layers of this model differ";
  refuses("qwen3_next", {}, differ + " (layer 0 has a state in place of attention, and layer 3 has none)");
  refuses("qwen3_moe", {{"model.args.mlp_only_layers", "[1]"}}, differ + " (layer 0: ");
  // Layers that are alike, with a key that is for their number.
  refuses("qwen3_moe", {{"model.args.mlp_only_layers", "[0, 1, 2, 3]"}}, "is not for 3 layers (");
}

TEST(SearchPlans, TellsOfWindowsThatDiffer) {
  const auto differs = [](const std::string& seq_len) {
    const auto overrides = model_of("gpt_oss", {{"training.seq_len", seq_len}, {"training.global_batch_size", "32"}});
    const SearchResult found = search_of(overrides, machine_with(1, 1), {.devices = 2});
    EXPECT_FALSE(found.best.empty());
    return found.window_difference;
  };
  EXPECT_EQ(differs("8"), "") << "no sequence exceeds the window";
  EXPECT_EQ(differs("256"), "a token sees up to 9 tokens in layer 0, and 256 in layer 1, of training.seq_len = 256");
}

}  // namespace
}  // namespace lehr::plan
