#include "lehr/plan/cost_model.h"

#include <gmock/gmock.h>

namespace lehr::plan {
namespace {

TEST(CostOf, CommunicationOverlapsUpToTheGivenShareOfCompute) {
  StageMeasurement stage;
  stage.forward.matmul_flops = 989e12;
  stage.forward.communication = {
      {.axes = "fsdp", .collective = "all_gather", .group_size = 8, .bytes = 45'000'000'000, .calls = 1000},
      {.axes = "tp", .collective = "reduce_scatter", .group_size = 8, .bytes = 45'000'000'000, .calls = 10}};
  Machine machine{.achieved_fraction = 1, .node_latency_us = 0, .achieved_link_fraction = 1, .layer_overhead_us = 0};
  machine.communication_overlap = 0.5;
  machine.ranks_per_node = 64;
  const mesh::DeviceMeshParameters mesh{.data_parallel_shard = 8, .tensor_parallel = 8};
  const auto exposed = [&](size_t which) {
    const CostContext context{.machine = machine, .mesh = mesh, .compute = at::kBFloat16};
    return cost_of(stage, 0, context).forward.communication[which].exposed;
  };
  // 7/8 of 8 x 45 GB over 450 GB/s take 0.7 s, of which half a second of compute hides as much.
  EXPECT_NEAR(exposed(0), 0.7 - 0.5, 1e-9);
  // Communication of tensor parallelism is never overlapped.
  EXPECT_NEAR(exposed(1), 0.0875, 1e-9);
  machine.node_gb_per_second *= 2;
  EXPECT_NEAR(exposed(1), 0.0875 / 2, 1e-9);
  // All gathers overlap except the first, which cannot be prefetched.
  EXPECT_NEAR(exposed(0), 0.35 / 1000, 1e-9);
}

// Each part of an action and of the update, by figures that are easy to divide.
TEST(CostOf, HasTheSecondsOfItsFormulas) {
  const Machine machine{
      .tflops_bfloat16 = 10,
      .tflops_float32 = 2,
      .achieved_fraction = 0.5,
      .achieved_expert_fraction = 0.25,
      .achieved_attention_fraction = 0.2,
      .memory_gb_per_second = 100,
      .achieved_memory_fraction = 0.5,
      .layer_overhead_us = 1000};
  StageMeasurement stage;
  stage.num_layers = 3;
  stage.forward = {.matmul_flops = 4e12, .attention_flops = 1e12, .pointwise_bytes = 5'000'000'000};
  stage.parameter_bytes = 9'000'000'000;  // of which the update touches the trained ones
  stage.trained_bytes = 1'000'000'000;
  stage.gradient_bytes = 2'000'000'000;
  stage.optimizer_bytes = 4'000'000'000;
  const StageCost cost = cost_of(stage, /*expert_share=*/0.5, {.machine = machine, .mesh = {}, .compute = at::kFloat});
  EXPECT_DOUBLE_EQ(cost.forward.matmuls, 2e12 / 1e12);
  EXPECT_DOUBLE_EQ(cost.forward.experts, 2e12 / 0.5e12);
  EXPECT_DOUBLE_EQ(cost.forward.attention, 1e12 / 0.4e12);
  EXPECT_DOUBLE_EQ(cost.forward.pointwise, 5e9 / 50e9);
  EXPECT_DOUBLE_EQ(cost.forward.overhead, 3 * 1000e-6);
  EXPECT_DOUBLE_EQ(cost.forward.seconds(), 2 + 4 + 2.5 + 0.1 + 0.003);
  EXPECT_DOUBLE_EQ(cost.optimizer, 2 * (1e9 + 2e9 + 4e9) / 50e9);
  EXPECT_DOUBLE_EQ(cost.update(), cost.optimizer);
}

// Options that are not Lehr's defaults change their part of an action, and nothing else.
TEST(CostOf, HasTheSecondsOfOtherDesigns) {
  const Machine machine{
      .tflops_bfloat16 = 10,
      .achieved_fraction = 0.5,
      .achieved_expert_fraction = 0.25,
      .achieved_attention_fraction = 0.2,
      .tflops_float8 = 20,
      .achieved_float8_fraction = 0.4,
      .sustained_clock_fraction = 0.8,
      .memory_gb_per_second = 100,
      .achieved_memory_fraction = 0.5,
      .node_gb_per_second = 7,
      .node_latency_us = 0,
      .achieved_link_fraction = 1,
      .layer_overhead_us = 0};
  StageMeasurement stage;
  stage.weights = {.active_experts = 8, .linear = 4, .linear_float8 = 3};
  stage.forward = {.matmul_flops = 4e12, .attention_flops = 1e12, .pointwise_bytes = 5'000'000'000};
  stage.forward.communication = {
      {.axes = "tp", .collective = "reduce_scatter", .group_size = 8, .bytes = 8'000'000'000, .calls = 1},
      {.axes = "ep", .collective = "all_to_all", .group_size = 8, .bytes = 8'000'000'000, .calls = 1}};
  const auto cost = [&](const PeerDesign& peer, bool float8 = false) {
    const mesh::DeviceMeshParameters mesh{.tensor_parallel = 8, .expert_parallel = 8};
    return cost_of(
               stage, 0.5, {.machine = machine, .mesh = mesh, .compute = at::kBFloat16, .float8 = float8, .peer = peer})
        .forward;
  };
  const ActionCost plain = cost({});
  EXPECT_DOUBLE_EQ(plain.matmuls, 2e12 / (0.8 * 5e12));
  EXPECT_DOUBLE_EQ(plain.experts, 2e12 / (0.8 * 2.5e12));
  EXPECT_DOUBLE_EQ(plain.attention, 1e12 / (0.8 * 2e12));
  EXPECT_DOUBLE_EQ(plain.exposed(), 1 + 1);
  const double float8_seconds = 2e12 * (0.25 / 4e12 + 0.75 / 6.4e12);
  EXPECT_DOUBLE_EQ(cost({}, true).matmuls, float8_seconds);
  EXPECT_DOUBLE_EQ(cost({}, true).experts, plain.experts);
  EXPECT_DOUBLE_EQ(cost({.float8 = true}).matmuls, float8_seconds);
  EXPECT_DOUBLE_EQ(cost({.float8_experts = true}).experts, 2e12 / 3.2e12);
  EXPECT_DOUBLE_EQ(cost({.pointwise_bytes = 2}).pointwise, 2 * plain.pointwise);
  EXPECT_DOUBLE_EQ(cost({.tensor_parallel_overlap = 0.75}).exposed(), 0.25 + 1);
  EXPECT_DOUBLE_EQ(cost({.expert_parallel_overlap = 0.75}).exposed(), 1 + 0.25);
  EXPECT_DOUBLE_EQ(cost({.dispatch_bytes = 0.5}).exposed(), 1 + 0.5);
  // Of a run whose experts are in float8: all of them, or those of some layers.
  stage.weights.active_experts_float8 = 8;
  EXPECT_DOUBLE_EQ(cost({}, true).experts, 2e12 / 3.2e12);
  EXPECT_DOUBLE_EQ(cost({}, true).matmuls, float8_seconds);
  stage.weights.active_experts_float8 = 2;
  EXPECT_DOUBLE_EQ(cost({}, true).experts, 2e12 * (0.75 / 2e12 + 0.25 / 3.2e12));
  stage.weights.active_experts_float8 = 0;
  stage.expert_tokens = 100;
  const Machine halved = [&] {
    Machine one = machine;
    one.expert_half_tokens = 300;
    return one;
  }();
  const CostContext few{.machine = halved, .mesh = {}, .compute = at::kBFloat16};
  EXPECT_DOUBLE_EQ(cost_of(stage, 0.5, few).forward.experts, 4 * plain.experts);
}

TEST(CostOf, OtherDesignsGatherOnceAndAccumulateInTheMatmul) {
  const Machine machine{
      .memory_gb_per_second = 100,
      .achieved_memory_fraction = 1,
      .node_gb_per_second = 7,
      .node_latency_us = 0,
      .achieved_link_fraction = 1,
      .layer_overhead_us = 0};
  StageMeasurement stage;
  stage.gradient_bytes = 1'000'000'000;
  stage.whole_gradient_bytes = 7'000'000'000;
  stage.backward.pointwise_bytes = 50'000'000'000;
  stage.forward.pointwise_bytes = 50'000'000'000;
  stage.forward.communication = {
      {.axes = "fsdp", .collective = "all_gather", .group_size = 8, .bytes = 8'000'000'000, .calls = 8}};
  const auto cost = [&](const PeerDesign& peer) {
    return cost_of(
        stage,
        0,
        {.machine = machine,
         .mesh = {.data_parallel_shard = 8},
         .compute = at::kBFloat16,
         .peer = peer,
         .microbatches = 4});
  };
  EXPECT_DOUBLE_EQ(cost({}).backward.pointwise, 0.5);
  EXPECT_DOUBLE_EQ(cost({.accumulates_in_matmul = true}).backward.pointwise, 0.5 - 0.24);
  EXPECT_DOUBLE_EQ(cost({.accumulates_in_matmul = true}).forward.pointwise, 0.5);
  EXPECT_DOUBLE_EQ(cost({}).forward.communication[0].seconds, 8);
  EXPECT_DOUBLE_EQ(cost({.gathers_once = true}).forward.communication[0].seconds, 2);
}

TEST(CostOf, OtherDesignsSendOtherNumbersOfBytes) {
  const Machine machine{
      .node_gb_per_second = 7, .node_latency_us = 0, .achieved_link_fraction = 1, .layer_overhead_us = 0};
  StageMeasurement stage;
  stage.forward.communication = {
      {.axes = "tp", .collective = "all_gather", .group_size = 2, .bytes = 7'000'000'000, .calls = 1},
      {.axes = "tp", .collective = "reduce_scatter", .group_size = 2, .bytes = 14'000'000'000, .calls = 1},
      {.axes = "dp_replicate", .collective = "all_reduce", .group_size = 2, .bytes = 7'000'000'000, .calls = 1},
      {.axes = "cp", .collective = "all_gather", .group_size = 2, .bytes = 7'000'000'000, .calls = 1}};
  const auto seconds = [&](size_t which, const PeerDesign& peer) {
    const CostContext context{
        .machine = machine,
        .mesh = {.data_parallel_replicate = 2, .context_parallel = 2, .tensor_parallel = 2},
        .compute = at::kBFloat16,
        .peer = peer};
    return cost_of(stage, 0, context).forward.communication[which].seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(0, {.tensor_parallel_gather_bytes = 0.5}), 0.5 * seconds(0, {}));
  EXPECT_EQ(seconds(1, {.tensor_parallel_gather_bytes = 0.5}), seconds(1, {}));
  EXPECT_EQ(seconds(2, {.tensor_parallel_gather_bytes = 0.5}), seconds(2, {}));
  EXPECT_DOUBLE_EQ(seconds(2, {.replicate_bytes = 0.25}), 0.25 * seconds(2, {}));
  EXPECT_EQ(seconds(0, {.replicate_bytes = 0.25}), seconds(0, {}));
  EXPECT_DOUBLE_EQ(seconds(3, {.context_parallel_bytes = 4}), 4 * seconds(3, {}));
}

TEST(CostOf, LayersWithExpertsHaveMoreOverheadUnlessCudaGraphsCaptureThem) {
  const Machine machine{.layer_overhead_us = 100, .expert_layer_overhead_us = 1000};
  StageMeasurement stage;
  stage.num_layers = 3;
  stage.num_expert_layers = 2;
  const auto overhead = [&](const PeerDesign& peer) {
    return cost_of(stage, 0, {.machine = machine, .mesh = {}, .compute = at::kFloat, .peer = peer}).backward.overhead;
  };
  EXPECT_DOUBLE_EQ(overhead({}), 3 * 100e-6 + 2 * 1000e-6);
  EXPECT_DOUBLE_EQ(overhead({.cuda_graphs = true}), 3 * 100e-6);
}

TEST(CostOf, CollectivesOfADesignWithoutOverlapAreExposed) {
  StageMeasurement stage;
  stage.forward.matmul_flops = 1e15;
  stage.forward.communication = {
      {.axes = "fsdp", .collective = "all_gather", .group_size = 8, .bytes = 1'000'000'000, .calls = 10}};
  const Machine machine;
  const auto gather = [&](const PeerDesign& peer) {
    const mesh::DeviceMeshParameters mesh{.data_parallel_shard = 8};
    return cost_of(stage, 0, {.machine = machine, .mesh = mesh, .compute = at::kBFloat16, .peer = peer})
        .forward.communication[0];
  };
  EXPECT_LT(gather({}).exposed, 0.2 * gather({}).seconds);
  EXPECT_DOUBLE_EQ(gather({.sharding_overlap = 0}).exposed, gather({}).seconds);
}

TEST(CostOf, TheSlowestRankDelaysAllOthers) {
  const Machine machine{.achieved_fraction = 1, .layer_overhead_us = 0, .rank_deviation = 0.01};
  StageMeasurement stage;
  stage.forward.matmul_flops = 989e12;
  const auto slowest = [&](int64_t ranks) {
    return cost_of(stage, 0, {.machine = machine, .mesh = {.data_parallel_shard = ranks}, .compute = at::kBFloat16})
        .forward.slowest;
  };
  EXPECT_EQ(slowest(1), 0);
  EXPECT_NEAR(slowest(1024), 0.0372, 1e-4);  // sqrt(2 ln 1024) = 3.72 deviations
}

}  // namespace
}  // namespace lehr::plan
