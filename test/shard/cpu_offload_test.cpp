// Parameters in host memory with unsharded copies on a compute device: here both are the CPU, with separate memory.
#include <gtest/gtest.h>

#include <atomic>

#include "lehr/shard/fully_shard.h"
#include "tiny_stack.h"

namespace lehr::shard {
namespace {

// Counts how many parameters forward reads from the memory of the sharded values.
class Readers : public nn::CallHook {
 public:
  explicit Readers(const nn::Module& module) : parameters_(nn::named_parameters(module)) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    for (const auto& [name, parameter] : parameters_) {
      ++read;
      own += parameter->shown().is_alias_of(parameter->value()) ? 1 : 0;
      EXPECT_TRUE(parameter->value().numel() == 0 || parameter->value().storage().nbytes() > 0);
    }
    return forward(input);
  }
  int64_t read = 0;
  int64_t own = 0;

 private:
  std::vector<nn::NamedParameter> parameters_;
};

// Trains on `mesh` and compares with one device. Returns the percentage of parameters that forward read from the memory
// of the sharded values.
int64_t percent_read_in_place(
    const mesh::DeviceMeshParameters& mesh, const StackOptions& stack, const FullyShardOptions& options) {
  const Trained expected = train_on_one_device(stack);
  std::atomic<int64_t> read = 0, own = 0;
  on_mesh(mesh, [&](mesh::DistributedContext& context) {
    Stack model(stack);
    FullySharded sharded = fully_shard(context, model, model.units(), options);
    options.compute_device ? materialize_offloaded(model, *options.compute_device, at::kDouble)
                           : nn::materialize(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    const auto readers = std::make_shared<Readers>(*model.layers[1]->mlp);
    model.layers[1]->mlp->add_call_hook(readers);
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = step_on_rank(context, model, sharded, step, 2);
      EXPECT_NEAR(loss, expected.losses[static_cast<size_t>(step)], kTolerance * loss) << step;
      update(model);
    }
    EXPECT_EQ(sharded.gathered_bytes(), 0);
    expect_equal(model, expected);
    read += readers->read;
    own += readers->own;
  });
  return read == 0 ? 100 : 100 * own / read;
}

TEST(CpuOffload, TrainsLikeOneDeviceAndForwardNeverReadsTheOffloadedMemory) {
  const std::vector<mesh::DeviceMeshParameters> meshes{
      {},
      {.data_parallel_shard = 4},
      {.data_parallel_replicate = 2},
      {.data_parallel_replicate = 2, .data_parallel_shard = 2}};
  for (const auto& mesh : meshes) {
    for (const bool checkpoint : {false, true}) {
      for (const auto policy : {ReshardPolicy::all_but_last, ReshardPolicy::never}) {
        SCOPED_TRACE(mesh.describe());
        FullyShardOptions options = kDouble;
        options.compute_device = at::kCPU;
        options.reshard_after_forward = policy;
        options.reduce_each_microbatch = !checkpoint;
        EXPECT_EQ(percent_read_in_place(mesh, {.checkpoint = checkpoint, .tied = checkpoint}, options), 0);
      }
    }
  }
}

// Shows that the test above can fail: without a compute device, one rank reads values where they are.
TEST(CpuOffload, WithoutOffloadOneRankReadsTheMemoryOfValues) {
  EXPECT_EQ(percent_read_in_place({}, {}, kDouble), 100);
}

// Gradients have memory of their own: gradients that autograd still holds from the step before must not change.
TEST(CpuOffload, GradientsHaveMemoryOfTheirOwn) {
  on_mesh({}, [](mesh::DistributedContext& context) {
    Stack model({});
    FullyShardOptions options = kDouble;
    options.compute_device = at::kCPU;
    FullySharded sharded = fully_shard(context, model, model.units(), options);
    materialize_offloaded(model, at::kCPU, at::kDouble);
    model.reset_parameters({.seed = 3});
    step_on_rank(context, model, sharded, 0, 1);
    std::vector<at::Tensor> gradients;
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      const at::Tensor& gradient = parameter->value().grad();
      if (gradient.defined() && gradient.numel() > 0) {
        EXPECT_EQ(gradient.storage().nbytes(), gradient.nbytes()) << name << ": a part of a buffer";
        for (const at::Tensor& other : gradients) {
          EXPECT_FALSE(gradient.is_alias_of(other)) << name;
        }
        gradients.push_back(gradient);
      }
    }
    EXPECT_GT(gradients.size(), 10U);
  });
}

}  // namespace
}  // namespace lehr::shard
