// A fully sharded model trains like one device.
#include "lehr/shard/fully_shard.h"

#include <gtest/gtest.h>

#include "tiny_stack.h"

namespace lehr::shard {
namespace {

struct Case {
  mesh::DeviceMeshParameters mesh;
  StackOptions stack = {};
  ReshardPolicy policy = ReshardPolicy::all_but_last;
  int64_t microbatches = 2;
  int64_t bucket_bytes = 25 << 20;
  bool reduce_each_microbatch = true;
};

void expect_equal_to_one_device(const Case& c, const Prepare& prepare = {}) {
  FullyShardOptions options = kDouble;
  options.reshard_after_forward = c.policy;
  options.bucket_bytes = c.bucket_bytes;
  options.reduce_each_microbatch = c.reduce_each_microbatch;
  expect_equal_to_one_device(
      c.mesh, c.stack, options, prepare, [&](auto& context, Stack& model, FullySharded& sharded, int64_t step) {
        return step_on_rank(context, model, sharded, step, c.microbatches);
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

TEST(FullyShard, TrainsLikeOneDeviceOnEveryMesh) {
  for (const auto& mesh : meshes()) {
    for (const int64_t microbatches : {1, 2}) {
      expect_equal_to_one_device({.mesh = mesh, .microbatches = microbatches});
    }
  }
}

TEST(FullyShard, TrainsLikeOneDeviceUnderEachPolicyWithAndWithoutCheckpointing) {
  for (const auto policy : {ReshardPolicy::all_but_last, ReshardPolicy::always, ReshardPolicy::never}) {
    for (const bool checkpoint : {false, true}) {
      expect_equal_to_one_device(
          {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2},
           .stack = {.checkpoint = checkpoint},
           .policy = policy});
    }
  }
}

TEST(FullyShard, TiedWeightsGetTheGradientsOfBothUses) {
  for (const bool checkpoint : {false, true}) {
    expect_equal_to_one_device({.mesh = {.data_parallel_shard = 4}, .stack = {.checkpoint = checkpoint, .tied = true}});
    expect_equal_to_one_device(
        {.mesh = {.data_parallel_replicate = 2}, .stack = {.checkpoint = checkpoint, .tied = true}});
  }
}

TEST(FullyShard, UnitsMayBeUnusedOrUsedTwice) {
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

TEST(FullyShard, TrainsLikeOneDeviceIfGradientsAreReducedOncePerStep) {
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

TEST(FullyShard, ReducesGradientsInBucketsOfAnySize) {
  for (const int64_t bytes : {1, 100, 1000}) {
    expect_equal_to_one_device(
        {.mesh = {.data_parallel_replicate = 2, .data_parallel_shard = 2}, .bucket_bytes = bytes});
  }
}

TEST(FullyShard, FrozenParametersAreUnshardedAndGetNoGradient) {
  const auto freeze = [](torch::nn::Module& module) {
    for (const auto& [name, parameter] : nn::named_parameters(module)) {
      parameter->set_trainable(false);
    }
  };
  const std::vector<Prepare> choices{
      [&](Stack& model) { freeze(*model.layers[1]); },       // a whole unit in the middle
      [&](Stack& model) { freeze(*model.layers[1]->mlp); },  // a part of a unit
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

TEST(FullyShard, InitializesTheSameBitsOnEveryMesh) {
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

// The gradients of each of eight micro-batches, of two sequences each, are in bfloat16; this sums them in float32.
std::map<std::string, at::Tensor> gradients_in_bfloat16(int64_t microbatches, double& loss) {
  Stack model({});
  nn::materialize(model, at::kCPU, at::kFloat);
  model.reset_parameters({.seed = 3});
  std::map<std::string, at::Tensor> narrow, sums;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    narrow[name] = parameter->value().detach().to(at::kBFloat16).set_requires_grad(true);
    parameter->show(narrow[name]);
  }
  const Rows all = make_rows(kRows, 0);
  const int64_t rows = kRows / microbatches;
  for (int64_t i = 0; i < microbatches; ++i) {
    const Rows part = rows_of(all, i * rows, rows);
    const at::Tensor part_loss = model.loss(part.ids, part.labels) / (4 * kRows - 1);
    part_loss.backward();
    loss += part_loss.item<double>();
    for (auto& [name, value] : narrow) {
      if (value.grad().defined()) {
        const at::Tensor wide = value.grad().to(at::kFloat);
        sums[name] = sums[name].defined() ? sums[name] + wide : wide;
        value.mutable_grad().reset();
      }
    }
  }
  return sums;
}

// Every mesh runs the same micro-batches, so all terms have the same bits, and only the order of a sum of eight terms
// in float32 differs: some 2^-24 of a term. One more rounding of a term to bfloat16 would cost 2^-9.
TEST(FullyShard, ComputesInBfloat16WithFloat32Weights) {
  constexpr int64_t kMicrobatches = 8;
  double expected_loss = 0;
  const auto expected = gradients_in_bfloat16(kMicrobatches, expected_loss);
  const FullyShardOptions mixed{.compute = at::kBFloat16, .reduce = at::kFloat};
  for (const mesh::DeviceMeshParameters& mesh :
       {mesh::DeviceMeshParameters{},
        mesh::DeviceMeshParameters{.data_parallel_shard = 4},
        mesh::DeviceMeshParameters{.data_parallel_replicate = 2, .data_parallel_shard = 2}}) {
    SCOPED_TRACE(mesh.describe());
    on_mesh(mesh, [&](mesh::DistributedContext& context) {
      Stack model({});
      FullySharded sharded = fully_shard(context, model, model.units(), mixed);
      nn::materialize(model, at::kCPU, at::kFloat);
      model.reset_parameters({.seed = 3});
      const double loss = step_on_rank(context, model, sharded, 0, kMicrobatches / context.data_parallel_size());
      EXPECT_EQ(model.layers[0]->mlp->up_proj->weight.scalar_type(), at::kBFloat16);
      EXPECT_NEAR(loss, expected_loss, 1e-6 * expected_loss);
      for (const auto& [name, parameter] : nn::named_parameters(model)) {
        const at::Tensor gradient = parameter->value().grad();
        ASSERT_EQ(gradient.defined(), expected.contains(name)) << name;
        if (gradient.defined() && gradient.numel() > 0) {
          EXPECT_EQ(gradient.scalar_type(), at::kFloat);
          const at::Tensor& wanted = expected.at(name);
          const double largest = wanted.abs().max().item<double>();
          EXPECT_GT(largest, 0) << name;
          const at::Tensor error = gradient - narrow_to(wanted, parameter->box());
          EXPECT_LE(error.abs().max().item<double>(), 1e-6 * largest) << name;
        }
      }
    });
  }
}

// A module of one weight, whose elements all have the same gradient: the sum of the tokens.
class OneWeightImpl : public nn::Module {
 public:
  OneWeightImpl() { declare_parameter("weight", weight, {3}, nn::Init::zeros()); }
  at::Tensor forward(const at::Tensor& tokens) { return (tokens * weight).sum(); }
  at::Tensor weight;
};
LEHR_MODULE(OneWeight);

class ModelOfOneWeight : public nn::Module {
 public:
  ModelOfOneWeight() : layer(register_module("layer", OneWeight())) {}
  OneWeight layer{nullptr};
};

// The gradient of this rank's shard of a float32 weight that computes in bfloat16. The gradient is 256 on rank 0 and 1
// on rank 1, or in one micro-batch and in the next.
at::Tensor sum_of_256_and_1(mesh::DistributedContext& context, FullyShardOptions options, bool over_microbatches) {
  ModelOfOneWeight model;
  options.compute = at::kBFloat16;
  FullySharded sharded = fully_shard(context, model, {{"layer", {model.layer.ptr()}}}, options);
  nn::materialize(model, at::kCPU, at::kFloat);
  model.reset_parameters();
  sharded.begin_step();
  for (const int64_t number : over_microbatches ? std::vector<int64_t>{0, 1} : std::vector{context.rank()}) {
    // Over micro-batches, rank 1 adds nothing.
    const double gradient = number == 0 ? 256 : 1;
    const double own = over_microbatches && context.rank() == 1 ? 0 : gradient;
    sharded.set_last_microbatch(!over_microbatches || number == 1);
    model.layer(at::full({1}, own, at::kBFloat16)).backward();
    sharded.finish_backward();
  }
  return model.layer->own_parameter("weight")->value().grad();
}

// 257 is not a bfloat16 number: a sum in bfloat16 would be 256 or 258.
TEST(FullyShard, ReducesGradientsInTheReduceTypeNotInTheComputeType) {
  for (const bool reduce_each_microbatch : {true, false}) {
    for (const bool over_microbatches : {true, false}) {
      for (const auto& mesh :
           {mesh::DeviceMeshParameters{.data_parallel_shard = 2},
            mesh::DeviceMeshParameters{.data_parallel_replicate = 2}}) {
        on_mesh(mesh, [&](mesh::DistributedContext& context) {
          const FullyShardOptions options{.reduce = at::kFloat, .reduce_each_microbatch = reduce_each_microbatch};
          const at::Tensor sum = sum_of_256_and_1(context, options, over_microbatches);
          EXPECT_EQ(sum.scalar_type(), at::kFloat);
          EXPECT_TRUE(at::equal(sum, at::full_like(sum, 257))) << mesh.describe() << sum;
        });
      }
    }
  }
}

TEST(FullyShard, ReducesGradientsInBfloat16IfThatIsTheReduceType) {
  on_mesh({.data_parallel_shard = 2}, [&](mesh::DistributedContext& context) {
    const at::Tensor sum = sum_of_256_and_1(context, {.reduce = at::kBFloat16}, /*over_microbatches=*/false);
    EXPECT_EQ(sum.scalar_type(), at::kFloat) << "that of the weight";
    EXPECT_TRUE(at::equal(sum, at::full_like(sum, 256))) << sum;
  });
}

}  // namespace
}  // namespace lehr::shard
