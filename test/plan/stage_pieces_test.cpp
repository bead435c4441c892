#include "lehr/plan/stage_pieces.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "lehr/base/value_of.h"
#include "lehr/pipeline/communication.h"
#include "lehr/plan/make_plan.h"
#include "lehr/plan/mesh_stages.h"
#include "lehr/plan/search_space.h"
#include "lehr/plan/step_time.h"
#include "test/plan/support.h"

namespace lehr::plan {
namespace {

using testing::model_of;

// `tolerance` is relative.
void expect_same_stage(const StageMeasurement& made, const StageMeasurement& whole, double tolerance) {
  const auto same = [&](double a, double b) { EXPECT_NEAR(a, b, tolerance * std::abs(b)); };
  same(made.forward.flops(), whole.forward.flops());
  same(made.weights.active, whole.weights.active);
  EXPECT_NEAR(made.weights.float8_share(), whole.weights.float8_share(), 1e-12);
  same(made.backward.flops(), whole.backward.flops());
  same(static_cast<double>(made.at_rest()), static_cast<double>(whole.at_rest()));
  same(static_cast<double>(made.trained_bytes), static_cast<double>(whole.trained_bytes));
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

// Workspace and unsharded parameters do not grow with the layers, only what they keep does.
TEST(MeshStages, HaveTheMemoryOfPlansOfManyLayers) {
  const Machine machine = load_machine("cpu");
  const train::testing::Folder folder;
  const auto config = train::testing::tiny_run(
      folder.path(),
      model_of(
          "qwen3",
          {{"training.global_batch_size", "32"},
           {"model.args.num_hidden_layers", "48"},
           {"model.args.hidden_size", "256"},
           {"model.args.intermediate_size", "1024"},
           {"model.args.vocab_size", "2048"},
           {"model.args.max_position_embeddings", "1024"},
           {"training.seq_len", "1024"}}));
  const auto specs = train::testing::specs();
  const auto& spec = specs.at(config.model);
  MeshStages stages(config, spec, machine);
  const MeshPoint point{.mesh = {.pipeline_parallel = 3, .data_parallel_shard = 4}, .microbatches = 8};
  const pipeline::ScheduleOptions schedule{
      .schedule = pipeline::parse_schedule("1F1B"), .num_ranks = 3, .num_stages_per_rank = 1, .num_microbatches = 8};
  const auto program = pipeline::add_communication(pipeline::build_program(schedule));
  for (const std::string checkpointing : {"none", "op", "full"}) {
    const Trade trade{.checkpointing = checkpointing};
    std::vector<PlannedStage> made;
    for (const int64_t stage : {0, 1, 2}) {
      const StageShape shape{.layers = 16, .first = stage == 0, .last = stage == 2};
      made.push_back(value_of(stages.stage(point, trade, shape), "a stage"));
    }
    const auto found = predict_step(program, {&made[0], &made[1], &made[2]}, stages.context(point, trade)).memory;
    const Plan plan =
        make_plan(with_choices(config, point, trade, schedule), spec, machine, {.compare_schedules = false});
    for (size_t rank = 0; rank < 3; ++rank) {
      const double whole = plan.memory[rank].peak.total();
      EXPECT_NEAR(found[rank].peak.total(), whole, 0.03 * whole) << checkpointing << ", rank " << rank;
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
