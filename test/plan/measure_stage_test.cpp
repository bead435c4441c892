#include "lehr/plan/measure_stage.h"

#include <algorithm>
#include <set>

#include "lehr/plan/stage_costs.h"
#include "test/plan/support.h"

namespace lehr::plan {
namespace {

using testing::expect_same_bytes;
using testing::model_of;
using testing::Planned;
using train::testing::joined;

const Overrides kFloat64{{"training.dtype", "float64"}};
const Overrides kMixed{{"training.mixed_precision_param", "bfloat16"}};
const Overrides kAllKept{{"activation_checkpoint.mode", "none"}};
const Overrides kCheckpointing{{"activation_checkpoint.mode", "full"}};
const std::vector<const char*> kPolicies{"\"default\"", "\"always\"", "\"never\""};
const std::vector<std::string> kFamilies{"qwen3", "qwen3_moe", "llama3"};

// oneDNN's matmuls copy operands that are transposed views; the libraries of other devices read them directly.
class MeasureStage : public ::testing::Test {
 protected:
  MeasureStage() { at::globalContext().setUserEnabledMkldnn(false); }
  ~MeasureStage() override { at::globalContext().setUserEnabledMkldnn(true); }
};

// Compares the prediction with a run on one device.
void expect_memory_of_a_run(const Overrides& changes) {
  for (const std::string& family : kFamilies) {
    for (const Overrides& checkpointing : {Overrides{}, kAllKept, kCheckpointing}) {
      SCOPED_TRACE(family + (checkpointing.empty() ? "" : ", checkpointing: " + checkpointing.front().second));
      const Planned planned(model_of(family, joined(changes, checkpointing)));
      expect_same_bytes(planned.on_meta(), planned.on_cpu());
    }
  }
}

TEST_F(MeasureStage, MemoryIsThatOfARunInFloat32) {
  expect_memory_of_a_run({});
}

TEST_F(MeasureStage, MemoryIsThatOfARunInFloat64) {
  expect_memory_of_a_run(kFloat64);
}

TEST_F(MeasureStage, MemoryIsThatOfARunInMixedPrecision) {
  expect_memory_of_a_run(kMixed);
}

void expect_memory_on_ranks(
    const Overrides& changes, int64_t ranks, const std::vector<std::string>& families = kFamilies) {
  for (const std::string& family : families) {
    SCOPED_TRACE(family);
    const Planned planned(model_of(family, changes));
    expect_same_bytes(planned.on_meta(), planned.on_cpu(ranks));
  }
}

TEST_F(MeasureStage, MemoryIsThatOfFullyShardedRanks) {
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    expect_memory_on_ranks(
        joined(
            kMixed,
            {{"parallelism.data_parallel_shard_degree", "2"}, {"parallelism.fsdp_reshard_after_forward", policy}}),
        2,
        policy == kPolicies.front() ? kFamilies : std::vector<std::string>{"qwen3"});
  }
}

TEST_F(MeasureStage, MemoryIsThatOfMuonOnShards) {
  const Overrides muon{{"optimizer.name", "\"muon\""}};
  expect_memory_on_ranks(joined(muon, {{"parallelism.data_parallel_shard_degree", "2"}}), 2);
  expect_memory_on_ranks(joined(muon, {{"parallelism.tensor_parallel_degree", "2"}}), 2, {"qwen3"});
}

// In one dtype: for a sum of two dtypes the CPU copies one operand, other devices do not.
TEST_F(MeasureStage, MemoryIsThatOfReplicas) {
  expect_memory_on_ranks({{"parallelism.data_parallel_replicate_degree", "2"}}, 2);
}

TEST_F(MeasureStage, MemoryIsThatOfTensorParallelRanks) {
  expect_memory_on_ranks({{"parallelism.tensor_parallel_degree", "2"}}, 2);
}

TEST_F(MeasureStage, MemoryIsThatOfContextParallelRanks) {
  for (const char* method : {"\"allgather\"", "\"ring\""}) {
    SCOPED_TRACE(method);
    expect_memory_on_ranks(
        {{"parallelism.context_parallel_degree", "2"}, {"parallelism.context_parallel_rotate_method", method}},
        2,
        {"qwen3", "qwen3_next"});
  }
}

// Every token goes to every expert, so that the load is even, as in a measurement.
TEST_F(MeasureStage, MemoryIsThatOfExpertParallelRanks) {
  expect_memory_on_ranks(
      {{"parallelism.data_parallel_shard_degree", "2"},
       {"parallelism.expert_parallel_degree", "2"},
       {"model.args.num_experts_per_tok", "8"},
       {"training.router_aux_loss_coef", "0.01"},
       {"training.router_z_loss_coef", "0.01"}},
      2,
      {"qwen3_moe"});
}

TEST_F(MeasureStage, MemoryIsThatOfStagesOfAPipeline) {
  const Planned planned(model_of(
      "qwen3",
      joined(
          kMixed,
          {{"parallelism.pipeline_parallel_degree", "2"},
           {"parallelism.data_parallel_shard_degree", "2"},
           {"training.global_batch_size", "16"}})));
  for (const int64_t stage : {0, 1}) {
    SCOPED_TRACE(stage);
    const StagePlace place{.stage = stage, .rank_of_stage = {0, 1}};
    expect_same_bytes(planned.on_meta(place), planned.on_cpu(4, place));
  }
}

TEST_F(MeasureStage, MemoryIsThatOfAdapters) {
  const Planned planned(model_of(
      "qwen3",
      {{"peft.method", "lora"},
       {"peft.target_pattern", ".*_proj"},
       {"peft.dropout", "0.1"},
       {"checkpoint.initial_load_path", "base"}}));
  expect_same_bytes(planned.on_meta(), planned.on_cpu());
}

TEST_F(MeasureStage, TrainedBytesAreWithoutAFrozenBase) {
  const StageMeasurement whole = Planned(model_of("qwen3")).on_meta();
  EXPECT_EQ(whole.trained_bytes, whole.parameter_bytes);
  EXPECT_EQ(whole.saved_bytes(false), whole.parameter_bytes + whole.optimizer_bytes);
  const StageMeasurement adapters =
      Planned(model_of("qwen3", {{"peft.method", "lora"}, {"checkpoint.initial_load_path", "base"}})).on_meta();
  EXPECT_EQ(adapters.trained_bytes, adapters.gradient_bytes);  // both in float32
  EXPECT_LT(adapters.trained_bytes, adapters.parameter_bytes / 2);
  EXPECT_EQ(adapters.saved_bytes(true), adapters.trained_bytes + adapters.optimizer_bytes);
}

TEST_F(MeasureStage, MemoryIsThatOfAdaptersOnStages) {
  const Planned planned(model_of(
      "qwen3",
      joined(
          kMixed,
          {{"peft.method", "lora"},
           {"peft.target_pattern", R"('.*layers\.[12]\..*_proj')"},
           {"checkpoint.initial_load_path", "base"},
           {"model.args.tie_word_embeddings", "true"},
           {"parallelism.pipeline_parallel_degree", "2"},
           {"parallelism.data_parallel_shard_degree", "2"},
           {"training.global_batch_size", "16"}})));
  for (const int64_t stage : {0, 1}) {
    SCOPED_TRACE(stage);
    const StagePlace place{.stage = stage, .rank_of_stage = {0, 1}};
    expect_same_bytes(planned.on_meta(place), planned.on_cpu(4, place));
  }
}

TEST_F(MeasureStage, MemoryIsThatOfAClassifier) {
  const Planned planned(model_of(
      "qwen3",
      {{"training.task", "classification"},
       {"training.classifier_dropout", "0.1"},
       {"data.datasets.0.kind", "classification"},
       {"data.validation_fraction", "0"},
       {"validation.enable", "false"}}));
  expect_same_bytes(planned.on_meta(), planned.on_cpu());
}

TEST_F(MeasureStage, FlopsEqualTheModelsOwnCount) {
  for (const std::string& family : kFamilies) {
    SCOPED_TRACE(family);
    const Planned planned(model_of(family, joined(kAllKept, {{"training.seq_len", "512"}})));
    const auto m = planned.on_meta();
    const double tokens = 512.0 * static_cast<double>(planned.config.training.local_batch_size);
    const auto counts = planned.args->get_nparams_and_flops(512);
    // The model counts the weights of norms as matmuls, and half of all pairs of positions without the diagonal.
    EXPECT_NEAR(
        m.forward.flops() + m.backward.flops(),
        tokens * static_cast<double>(counts.causal_flops_per_token),
        0.01 * tokens * static_cast<double>(counts.causal_flops_per_token));
    EXPECT_EQ(m.backward.flops(), m.backward_input.flops() + m.backward_weight.flops());
  }
}

TEST_F(MeasureStage, CheckpointingRecomputesLayersOnce) {
  const auto plain = Planned(model_of("qwen3", kAllKept)).on_meta();
  const auto checkpointed = Planned(model_of("qwen3", kCheckpointing)).on_meta();
  EXPECT_EQ(plain.backward.recomputed_flops, 0);
  EXPECT_EQ(checkpointed.forward.flops(), plain.forward.flops());
  EXPECT_EQ(checkpointed.backward.flops(), plain.backward.flops() + checkpointed.backward.recomputed_flops);
  const auto counts = Planned(model_of("qwen3")).args->get_nparams_and_flops(256);
  const double head = 6.0 * 64 * 512;  // per token, forward and backward
  const double layers = (static_cast<double>(counts.causal_flops_per_token) - head) / 3;
  // The tolerance is for norms, as above.
  EXPECT_NEAR(checkpointed.backward.recomputed_flops, 256 * layers, 0.01 * 256 * layers);
}

const Communication* find(const std::vector<Communication>& all, const std::string& collective) {
  for (const Communication& one : all) {
    if (one.collective == collective) {
      return &one;
    }
  }
  return nullptr;
}

TEST_F(MeasureStage, MessagesOfFullyShardedRanksAreTheirParameters) {
  // Dimensions that are divisible by 4 ranks, so that nothing is rounded up.
  const Planned planned(model_of(
      "llama3",
      joined(
          kMixed,
          {{"parallelism.data_parallel_shard_degree", "4"},
           {"parallelism.fsdp_reshard_after_forward", "\"always\""},
           {"model.args.tie_word_embeddings", "false"},
           {"training.global_batch_size", "16"}})));
  const auto m = planned.on_meta();
  const int64_t part = m.parameters / 4;
  const int64_t table = 512 * 64 / 4;  // the embedding's backward needs no values
  const Communication* gathers = find(m.forward.communication, "all_gather");
  ASSERT_NE(gathers, nullptr);
  EXPECT_EQ(gathers->bytes, 2 * part);  // in bfloat16
  EXPECT_EQ(gathers->group_size, 4);
  EXPECT_EQ(find(m.backward.communication, "all_gather")->bytes, 2 * (part - table));
  EXPECT_EQ(find(m.backward.communication, "reduce_scatter")->bytes, 4 * 4 * part);  // in float32, all parameters
}

// Three layers of four have gated DeltaNet, two key and four value heads of 8 x 6, with a convolution of four tokens.
TEST_F(MeasureStage, MessagesOfGatedDeltaNetAreMapsOfStatesAndTailsOfChunks) {
  const Planned planned(model_of(
      "qwen3_next",
      {{"parallelism.context_parallel_degree", "2"},
       {"activation_checkpoint.mode", "none"},
       {"model.args.linear_num_key_heads", "2"},
       {"model.args.linear_num_value_heads", "4"},
       {"model.args.linear_key_head_dim", "8"},
       {"model.args.linear_value_head_dim", "6"}}));
  const auto m = planned.on_meta();
  const auto calls = [](const ActionMeasurement& action, const std::string& collective, int64_t bytes) {
    return std::count_if(action.calls.begin(), action.calls.end(), [&](const Communication& one) {
      return one.axes == "cp" && one.collective == collective && one.bytes == bytes;
    });
  };
  const int64_t maps = 2 * 4 * 8 * (8 + 6) * 4, tails = 2 * 3 * (2 * 2 * 8 + 4 * 6) * 4;
  const int64_t marks = 2 * (1 + 3) * 8;  // the documents of the tails, and of the first token of a chunk
  EXPECT_EQ(calls(m.forward, "all_gather", maps), 3);
  EXPECT_EQ(calls(m.forward, "all_gather", tails), 3);
  EXPECT_EQ(calls(m.forward, "all_gather", marks), 3);
  EXPECT_EQ(calls(m.backward, "all_gather", maps), 3);
  EXPECT_EQ(calls(m.backward, "reduce_scatter", 2 * tails), 3);
}

TEST_F(MeasureStage, GradientsReducedOncePerStepAreUnshardedUntilThen) {
  const Planned planned(model_of(
      "llama3",
      {{"parallelism.data_parallel_shard_degree", "4"},
       {"parallelism.fsdp_reduce_each_microbatch", "false"},
       {"training.global_batch_size", "16"}}));
  const auto m = planned.on_meta();
  expect_same_bytes(m, planned.on_cpu(4));
  EXPECT_EQ(m.gradient_bytes, 4 * m.parameters / 4);
  EXPECT_EQ(m.whole_gradient_bytes, 4 * m.parameters - m.gradient_bytes);
  EXPECT_EQ(find(m.backward.communication, "reduce_scatter"), nullptr);
  const Communication* sums = find(m.per_step, "reduce_scatter");
  ASSERT_NE(sums, nullptr);
  EXPECT_EQ(sums->bytes, 4 * m.parameters);
}

// A reduction in flight belongs to no micro-batch: it must not count once for each of them.
TEST_F(MeasureStage, ActivationsOfAPipelineHaveNoReductionsInFlight) {
  const auto kept = [](const std::string& each_microbatch) {
    const Planned planned(model_of(
        "llama3",
        {{"parallelism.pipeline_parallel_degree", "2"},
         {"parallelism.data_parallel_shard_degree", "2"},
         {"parallelism.fsdp_reduce_each_microbatch", each_microbatch},
         {"training.global_batch_size", "8"}}));
    return planned.on_meta({.stage = 0, .rank_of_stage = {0, 1}, .world_size = 4}).forward.kept;
  };
  EXPECT_EQ(kept("true"), kept("false"));
}

using pipeline::ActionKind;
using After = PassPlace::After;

// Returns the events of an action that start or wait for this collective: +1 or -1 each (-2 for one of an earlier
// action), and 0 at the border.
std::vector<int> order_of(const ActionMeasurement& action, const std::string& axes, const std::string& collective) {
  std::vector<int> order;
  std::set<int64_t> started;
  const auto is_it = [&](int64_t call) {
    return call != ActionEvent::kNone && action.calls[static_cast<size_t>(call)].axes == axes &&
           action.calls[static_cast<size_t>(call)].collective == collective;
  };
  for (size_t i = 0; i < action.events.size(); ++i) {
    if (i == action.border) {
      order.push_back(0);
    }
    if (is_it(action.events[i].started)) {
      order.push_back(1);
      started.insert(action.events[i].started);
    } else if (is_it(action.events[i].waited)) {
      order.push_back(started.contains(action.events[i].waited) ? -1 : -2);
    }
  }
  return order;
}

const Overrides kTwoStages{
    {"parallelism.pipeline_parallel_degree", "2"},
    {"parallelism.data_parallel_shard_degree", "2"},
    {"training.global_batch_size", "8"}};
const StagePlace kSecondOfTwo{.stage = 1, .rank_of_stage = {0, 1}, .world_size = 4};

// The second stage has two layers, and the head with its norm: three units.
TEST_F(MeasureStage, AStageGathersBeforeItsFirstForward) {
  const auto order = [](const std::string& policy) {
    const Planned planned(
        model_of("llama3", joined(kTwoStages, {{"parallelism.fsdp_reshard_after_forward", "\"" + policy + "\""}})));
    const auto passes = planned.on_meta(kSecondOfTwo).passes;
    return order_of(*find_pass(passes, {.kind = ActionKind::forward, .first = true}), "fsdp", "all_gather");
  };
  EXPECT_EQ(order("never"), (std::vector<int>{1, 1, 1, 0, -1, -1, -1}));
  EXPECT_EQ(order("default"), (std::vector<int>{1, 0, -1, 1, -1, 1, -1}));
}

TEST_F(MeasureStage, AStageWaitsForReductionsAtTheEndOfTheStep) {
  const auto order = [](const std::string& each_microbatch, const Overrides& more = {}) {
    Overrides overrides = joined(kTwoStages, more);
    overrides.emplace_back("parallelism.fsdp_reduce_each_microbatch", each_microbatch);
    const Planned planned(model_of("llama3", overrides));
    StagePlace place = kSecondOfTwo;
    place.world_size = more.empty() ? 4 : 8;
    const auto passes = planned.on_meta(place).passes;
    const PassPlace last{.kind = ActionKind::backward_full, .after = After::forward, .last = true};
    return order_of(*find_pass(passes, last), "fsdp", "reduce_scatter");
  };
  EXPECT_EQ(order("false"), (std::vector<int>{1, 1, 1, 0, -1, -1, -1}));
  EXPECT_EQ(order("true"), (std::vector<int>{-2, 1, -1, 1, -1, 1, 0, -1}));
  // The all-reduce over replicas begins in backward, so it needs the shards there.
  EXPECT_EQ(
      order("false", {{"parallelism.data_parallel_replicate_degree", "2"}}),
      (std::vector<int>{1, -1, 1, -1, 1, 0, -1}));
}

// Each block of a layer keeps a part of the sequence less, and gathers it beside a matmul.
TEST_F(MeasureStage, SequencesThatAreGatheredAgainAreNotKept) {
  const auto measured = [](const std::string& regather) {
    const Planned planned(model_of(
        "llama3",
        joined(
            kAllKept,
            {{"parallelism.tensor_parallel_degree", "2"}, {"parallelism.tensor_parallel_regather", regather}})));
    return planned.on_meta();
  };
  const StageMeasurement kept = measured("false");
  const StageMeasurement again = measured("true");
  const int64_t blocks = 2 * again.num_layers;
  const int64_t sequence = 256 * 64 * 4;  // tokens x hidden size in float32; the norm before it is computed again
  EXPECT_EQ(kept.forward.kept - again.forward.kept, blocks * sequence);
  EXPECT_EQ(kept.backward.matmul_flops, again.backward.matmul_flops);
  const auto gathers = [](const ActionMeasurement& action) { return find(action.communication, "all_gather")->calls; };
  EXPECT_EQ(gathers(again.forward), gathers(kept.forward));
  EXPECT_EQ(gathers(again.backward), gathers(kept.backward) + blocks);
  double beside = 0;  // FLOPs while a gather runs
  bool running = false;
  for (const ActionEvent& event : again.backward.events) {
    beside += running ? event.work.matmul_flops : 0;
    running = event.started != ActionEvent::kNone;
  }
  EXPECT_GT(beside, 0);
}

TEST_F(MeasureStage, ReplicasAreReducedOncePerStep) {
  const Planned planned(model_of("qwen3", {{"parallelism.data_parallel_replicate_degree", "4"}}));
  const auto m = planned.on_meta();
  EXPECT_EQ(find(m.backward.communication, "all_reduce"), nullptr);
  const Communication* sums = find(m.per_step, "all_reduce");
  ASSERT_NE(sums, nullptr);
  const int64_t numbers = 4 + 11 * 4 + 2;  // flags for each parameter whether it was used: at most this many
  EXPECT_GE(sums->bytes, 4 * m.parameters);
  EXPECT_LE(sums->bytes, 4 * (m.parameters + numbers));
}

TEST_F(MeasureStage, AStageOfALargeModelIsMeasuredInSeconds) {
  const Planned planned(Overrides{
      {"model.name", "llama3"},
      {"model.args.hidden_size", "16384"},
      {"model.args.intermediate_size", "53248"},
      {"model.args.num_hidden_layers", "126"},
      {"model.args.num_attention_heads", "128"},
      {"model.args.num_key_value_heads", "8"},
      {"model.args.head_dim", "128"},
      {"model.args.vocab_size", "128256"},
      {"model.args.max_position_embeddings", "131072"},
      {"training.seq_len", "8192"},
      {"training.local_batch_size", "1"},
      {"training.global_batch_size", "512"},
      {"training.mixed_precision_param", "bfloat16"},
      {"parallelism.pipeline_parallel_degree", "16"},
      {"parallelism.data_parallel_shard_degree", "64"},
      {"parallelism.tensor_parallel_degree", "8"}});
  std::vector<int64_t> rank_of_stage;
  for (int64_t stage = 0; stage < 16; ++stage) {
    rank_of_stage.push_back(stage);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto m = planned.on_meta({.stage = 15, .rank_of_stage = rank_of_stage});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 60);  // about 0.5 s on an idle machine; the whole model would take minutes
  EXPECT_EQ(m.num_layers, 7);
}

TEST(StageCosts, DistinguishStagesThatRecomputeOtherLayers) {
  const Planned planned(model_of(
      "qwen3",
      {{"model.args.num_hidden_layers", "8"},
       {"parallelism.pipeline_parallel_degree", "4"},
       {"training.global_batch_size", "4"},
       {"activation_checkpoint.mode", "selective"},
       {"activation_checkpoint.selective_ac_option", "\"op 3\""}}));
  const Machine machine = load_machine("cpu");
  StageCosts costs(planned.config, planned.spec, *planned.args, {.machine = machine, .mesh = {.pipeline_parallel = 4}});
  const auto stages = costs.of({0, 1, 2, 3});
  EXPECT_LT(stages[1]->measured.forward.kept, stages[2]->measured.forward.kept) << "layer 3, and neither of 4 and 5";
  EXPECT_GT(stages[1]->cost.backward.seconds(), stages[2]->cost.backward.seconds());
}

}  // namespace
}  // namespace lehr::plan
