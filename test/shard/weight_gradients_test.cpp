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

// Relative to the largest number of the whole tensor.
double difference(const at::Tensor& actual, const at::Tensor& whole, const Box& box) {
  const at::Tensor part = narrow_to(whole, box);
  const at::NoGradGuard no_grad;
  return part.numel() == 0 ? 0 : ((actual - part).abs().max() / whole.abs().max().clamp_min(1e-3)).item<double>();
}

void expect_equal_to_one_device(const Case& c, const Prepare& prepare = {}) {
  SCOPED_TRACE(c.mesh.describe());
  const Trained expected = train_on_one_device(c.stack, prepare);
  on_mesh(c.mesh, [&](mesh::DistributedContext& context) {
    Stack model(c.stack);
    if (prepare) {
      prepare(model);
    }
    FullyShardOptions options = kDouble;
    options.reshard_after_forward = c.policy;
    options.bucket_bytes = c.bucket_bytes;
    FullySharded sharded = fully_shard(context, model, model.units(), options);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = step_in_halves(context, model, sharded, step, *c.acts);
      EXPECT_NEAR(loss, expected.losses[static_cast<size_t>(step)], kTolerance * loss) << step;
      update(model);
    }
    EXPECT_EQ(sharded.gathered_bytes(), 0);
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      const at::Tensor gradient = expected.gradients.at(name);
      ASSERT_EQ(parameter->value().grad().defined(), gradient.defined()) << name;
      EXPECT_LT(difference(parameter->value(), expected.values.at(name), parameter->box()), kTolerance) << name;
      if (gradient.defined()) {
        EXPECT_LT(difference(parameter->value().grad(), gradient, parameter->box()), kTolerance) << name;
      }
    }
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
