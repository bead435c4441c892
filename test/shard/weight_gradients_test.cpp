// Fully sharded models whose backward is split into dgrad and wgrad, with several micro-batches in flight, equal one
// device.
#include "steps_in_halves.h"

namespace lehr::shard {
namespace {

struct Case {
  mesh::DeviceMeshParameters mesh;
  StackOptions stack = {};
  ReshardPolicy policy = ReshardPolicy::all_but_last;
  const Acts* acts = &kZeroBubble;
  int64_t bucket_bytes = 25 << 20;
};

void expect_equal_to_one_device(const Case& c, const Prepare& prepare = {}) {
  FullyShardOptions options = kDouble;
  options.reshard_after_forward = c.policy;
  options.bucket_bytes = c.bucket_bytes;
  expect_equal_to_one_device(
      c.mesh, c.stack, options, prepare, [&](auto& context, Stack& model, FullySharded& sharded, int64_t step) {
        return step_in_halves(context, model, sharded, step, *c.acts);
      });
}

TEST(FullyShardSplitBackward, TrainsLikeOneDeviceOnEveryMesh) {
  const std::vector<mesh::DeviceMeshParameters> meshes{
      {},
      {.data_parallel_shard = 2},
      {.data_parallel_shard = 4},
      {.data_parallel_replicate = 2},
      {.data_parallel_replicate = 2, .data_parallel_shard = 2}};
  for (const auto& mesh : meshes) {
    for (const Acts* acts : {&kZeroBubble, &kMixed, &kOneForwardOneBackward}) {
      expect_equal_to_one_device({.mesh = mesh, .acts = acts});
    }
  }
}

TEST(FullyShardSplitBackward, TrainsLikeOneDeviceUnderEachPolicyWithAndWithoutCheckpointing) {
  for (const auto policy : {ReshardPolicy::all_but_last, ReshardPolicy::always, ReshardPolicy::never}) {
    for (const bool checkpoint : {false, true}) {
      for (const Acts* acts : {&kZeroBubble, &kMixed}) {
        expect_equal_to_one_device(
            {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
             .stack = {.checkpoint = checkpoint},
             .policy = policy,
             .acts = acts,
             .bucket_bytes = 100});
      }
    }
  }
}

TEST(FullyShardSplitBackward, AcceptsTiedWeightsAndUnitsThatAreUnusedOrUsedTwice) {
  for (const bool checkpoint : {false, true}) {
    expect_equal_to_one_device({.mesh = {.data_parallel_shard = 4}, .stack = {.checkpoint = checkpoint, .tied = true}});
    const std::vector<std::vector<size_t>> orders{{0, 2}, {0, 1, 1, 2}, {2, 1, 0}};
    for (const auto& order : orders) {
      expect_equal_to_one_device(
          {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
           .stack = {.checkpoint = checkpoint, .order = order},
           .bucket_bytes = 100});
    }
  }
}

TEST(FullyShardSplitBackward, FrozenParametersDeferNothing) {
  const auto freeze = [](torch::nn::Module& module) {
    for (const auto& [name, parameter] : nn::named_parameters(module)) {
      parameter->set_trainable(false);
    }
  };
  const std::vector<Prepare> choices{
      [&](Stack& model) { freeze(*model.layers[1]); },
      [&](Stack& model) { freeze(*model.layers[1]->mlp); },
      [&](Stack& model) {  // units without deferred matmuls: the norm and a bias
        freeze(*model.layers[1]->mlp);
        model.layers[1]->expert->own_parameter("weight")->set_trainable(false);
      }};
  for (const auto& choice : choices) {
    for (const bool checkpoint : {false, true}) {
      expect_equal_to_one_device(
          {.mesh = {.data_parallel_shard = 4}, .stack = {.checkpoint = checkpoint}, .policy = ReshardPolicy::always},
          choice);
    }
  }
}

}  // namespace
}  // namespace lehr::shard
