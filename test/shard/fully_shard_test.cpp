// A fully sharded model trains as on one device.
#include "lehr/shard/fully_shard.h"

#include <gtest/gtest.h>

#include "tiny_stack.h"

namespace lehr::shard {
namespace {

double difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) {
    return 0;
  }
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-3)).item<double>();
}

struct Case {
  mesh::DeviceMeshParameters mesh;
  StackOptions stack = {};
  ReshardPolicy policy = ReshardPolicy::all_but_last;
  int64_t microbatches = 2;
  int64_t bucket_bytes = 25 << 20;
  bool reduce_each_microbatch = true;
};

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
    options.reduce_each_microbatch = c.reduce_each_microbatch;
    FullySharded sharded = fully_shard(context, model, model.units(), options);
    nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = step_on_rank(context, model, sharded, step, c.microbatches);
      EXPECT_NEAR(loss, expected.losses[static_cast<size_t>(step)], kTolerance * loss) << step;
      update(model);
    }
    EXPECT_EQ(sharded.gathered_bytes(), 0);
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      const at::Tensor gradient = expected.gradients.at(name);
      ASSERT_EQ(parameter->value().grad().defined(), gradient.defined()) << name;
      EXPECT_LT(difference(parameter->value(), narrow_to(expected.values.at(name), parameter->box())), kTolerance)
          << name;
      if (gradient.defined()) {
        EXPECT_LT(difference(parameter->value().grad(), narrow_to(gradient, parameter->box())), kTolerance) << name;
      }
    }
  });
}

std::vector<mesh::DeviceMeshParameters> meshes() {
  return {
      {.data_parallel_shard = 2},
      {.data_parallel_shard = 4},
      {.data_parallel_replicate = 2},
      {.data_parallel_replicate = 2, .data_parallel_shard = 2},
      {.data_parallel_replicate = 2, .data_parallel_shard = 4},
      {}};
}

TEST(FullyShard, TrainsAsOneDeviceDoesOnEveryMesh) {
  for (const auto& mesh : meshes()) {
    for (const int64_t microbatches : {1, 2}) {
      expect_equal_to_one_device({.mesh = mesh, .microbatches = microbatches});
    }
  }
}

TEST(FullyShard, TrainsAsOneDeviceDoesUnderEachPolicyWithAndWithoutCheckpointing) {
  for (const auto policy : {ReshardPolicy::all_but_last, ReshardPolicy::always, ReshardPolicy::never}) {
    for (const bool checkpoint : {false, true}) {
      expect_equal_to_one_device(
          {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
           .stack = {.checkpoint = checkpoint},
           .policy = policy});
    }
  }
}

TEST(FullyShard, TiedWeightsGetTheGradientsOfBothPlaces) {
  for (const bool checkpoint : {false, true}) {
    expect_equal_to_one_device({.mesh = {.data_parallel_shard = 4}, .stack = {.checkpoint = checkpoint, .tied = true}});
    expect_equal_to_one_device(
        {.mesh = {.data_parallel_replicate = 2}, .stack = {.checkpoint = checkpoint, .tied = true}});
  }
}

TEST(FullyShard, UnitsMayBeLeftOutOrUsedTwice) {
  const std::vector<std::vector<size_t>> orders{{0, 2}, {0, 1, 1, 2}, {2, 1, 0}};
  for (const auto& order : orders) {
    for (const bool checkpoint : {false, true}) {
      for (const auto policy : {ReshardPolicy::all_but_last, ReshardPolicy::never}) {
        expect_equal_to_one_device(
            {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
             .stack = {.checkpoint = checkpoint, .order = order},
             .policy = policy,
             .bucket_bytes = 100});
      }
    }
  }
}

TEST(FullyShard, TrainsAsOneDeviceDoesIfGradientsStayWholeBetweenMicrobatches) {
  for (const auto& mesh : meshes()) {
    for (const bool checkpoint : {false, true}) {
      expect_equal_to_one_device(
          {.mesh = mesh,
           .stack = {.checkpoint = checkpoint, .tied = checkpoint},
           .policy = checkpoint ? ReshardPolicy::all_but_last : ReshardPolicy::never,
           .reduce_each_microbatch = false});
    }
  }
  expect_equal_to_one_device(
      {.mesh = {.data_parallel_shard = 4},
       .stack = {.order = {0, 1, 1, 2}},
       .microbatches = 4,
       .reduce_each_microbatch = false});
}

TEST(FullyShard, GradientsTravelInBucketsOfAnySize) {
  for (const int64_t bytes : {1, 100, 1000}) {
    expect_equal_to_one_device(
        {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2}, .bucket_bytes = bytes});
  }
}

TEST(FullyShard, FrozenParametersAreGatheredAndGetNoGradient) {
  const auto freeze = [](torch::nn::Module& module) {
    for (const auto& [name, parameter] : nn::named_parameters(module)) {
      parameter->set_trainable(false);
    }
  };
  const std::vector<Prepare> choices{
      [&](Stack& model) { freeze(*model.layers[1]); },       // a whole unit in the middle
      [&](Stack& model) { freeze(*model.layers[1]->mlp); },  // a part of one
      [&](Stack& model) {                                    // all but the last layer
        freeze(model);
        for (const auto& [name, parameter] : nn::named_parameters(*model.layers[2])) {
          parameter->set_trainable(true);
        }
      }};
  for (const auto& choice : choices) {
    for (const bool checkpoint : {false, true}) {
      for (const auto policy : {ReshardPolicy::always, ReshardPolicy::never}) {
        expect_equal_to_one_device(
            {.mesh = {.data_parallel_shard = 4}, .stack = {.checkpoint = checkpoint}, .policy = policy}, choice);
      }
    }
  }
}

TEST(FullyShard, StartsFromTheSameBitsOnEveryMesh) {
  Stack whole({});
  nn::materialize(whole, at::kCPU, at::kFloat);
  whole.reset_parameters({.seed = 9});
  const auto expected = nn::named_parameters(whole);
  on_mesh({.data_parallel_replicate = 2, .data_parallel_shard = 4}, [&](mesh::DistributedContext& context) {
    Stack model({});
    const FullySharded sharded = fully_shard(context, model, model.units(), {});
    nn::materialize(model, at::kCPU, at::kFloat);
    model.reset_parameters({.seed = 9});
    const auto parameters = nn::named_parameters(model);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& parameter = *parameters[i].parameter;
      EXPECT_TRUE(at::equal(parameter.value(), narrow_to(expected[i].parameter->value(), parameter.box())));
      EXPECT_EQ(parameter.value().size(0), chunk({0, parameter.shape()[0]}, context.index("fsdp"), 4).size());
    }
  });
}

// In bfloat16, against float32 weights on one rank with the same casts. Each rank rounds its own gradients to bfloat16
// before they are summed in float32, where one device rounds the sum: two roundings of 2^-9 relative to summands that
// may cancel, hence a few percent of the largest gradient. Equal shares of a wrong sum would be off by 100 percent.
TEST(FullyShard, ComputesInBfloat16WithFloat32Weights) {
  const FullyShardOptions mixed{.compute = at::kBFloat16, .reduce = at::kFloat};
  std::map<std::string, at::Tensor> expected;
  double expected_loss = 0;
  const auto run = [&](mesh::DistributedContext& context, const auto& look) {
    Stack model({});
    FullySharded sharded = fully_shard(context, model, model.units(), mixed);
    nn::materialize(model, at::kCPU, at::kFloat);
    model.reset_parameters({.seed = 3});
    const double loss = step_on_rank(context, model, sharded, 0, 2);
    EXPECT_EQ(model.layers[0]->mlp->up_proj->weight.scalar_type(), at::kBFloat16);
    look(model, loss);
  };
  on_mesh({}, [&](mesh::DistributedContext& context) {
    run(context, [&](Stack& model, double loss) {
      expected_loss = loss;
      for (const auto& [name, parameter] : nn::named_parameters(model)) {
        expected[name] = parameter->value().grad();
      }
    });
  });
  on_mesh({.data_parallel_shard = 4}, [&](mesh::DistributedContext& context) {
    run(context, [&](Stack& model, double loss) {
      EXPECT_NEAR(loss, expected_loss, 1e-6 * expected_loss);  // forward is the same but for the sum over tokens
      for (const auto& [name, parameter] : nn::named_parameters(model)) {
        const at::Tensor gradient = parameter->value().grad();
        ASSERT_EQ(gradient.defined(), expected[name].defined()) << name;
        if (gradient.defined() && gradient.numel() > 0) {
          EXPECT_EQ(gradient.scalar_type(), at::kFloat);
          const double largest = expected[name].abs().max().item<double>();
          EXPECT_LT((gradient - narrow_to(expected[name], parameter->box())).abs().max().item<double>(), 0.05 * largest)
              << name;
        }
      }
    });
  });
}

}  // namespace
}  // namespace lehr::shard
