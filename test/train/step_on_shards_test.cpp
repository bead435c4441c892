// A step on shards of parameters: the placement of each shard in the whole parameter, and the rounding noise of a
// shard.
#include <gtest/gtest.h>

#include "lehr/mesh/thread_transport.h"
#include "lehr/optim/build_optimizer.h"
#include "lehr/train/step.h"
#include "test/train/probe_model.h"

namespace lehr::train {
namespace {

using testing::LinearLossModel;
using testing::ProbeTask;

TEST(PlacementOf, IsTheOffsetOfAShardInTheWholeParameter) {
  at::Tensor slot;
  nn::Parameter whole("weight", &slot, {6, 10}, nn::Init::zeros());
  EXPECT_TRUE(placement_of(whole).shape.empty());
  EXPECT_TRUE(placement_of(whole).offset.empty());

  at::Tensor other_slot;
  nn::Parameter part("weight", &other_slot, {6, 10}, nn::Init::zeros());
  part.lay_out("tp", Placement::shard(1), /*index=*/1, /*count=*/2);
  part.lay_out("fsdp", Placement::shard(0), /*index=*/2, /*count=*/3);
  EXPECT_EQ(placement_of(part).shape, (std::vector<int64_t>{6, 10}));
  EXPECT_EQ(placement_of(part).offset, (std::vector<int64_t>{4, 5}));
}

constexpr int64_t kSize = 1000;
constexpr int64_t kBatchSize = 12;  // over all ranks
constexpr int64_t kSteps = 3;

// Tokens of 1, 2 and 4, eight of twelve with labels: gradients are multiples of an eighth below 4, so they are exact in
// bfloat16, whatever the order of their sum.
Batch some_tokens(int64_t first, int64_t count) {
  const at::Tensor exponents = (at::arange(kBatchSize * kSize, at::kLong) % 7 % 3).view({kBatchSize, 1, kSize});
  const at::Tensor labels = at::where(at::arange(kBatchSize, at::kLong) % 3 == 2, -100, 1).view({kBatchSize, 1});
  return {
      {"tokens", at::pow(2.0, exponents.to(at::kDouble)).narrow(0, first, count)},
      {"labels", labels.narrow(0, first, count)}};
}

// Weights in [1, 2), where adjacent bfloat16 numbers are 2^-7 apart.
at::Tensor initial_weight() {
  return (1 + at::arange(kSize, at::kDouble) / kSize).to(at::kBFloat16);
}

// Trains in bfloat16 with stochastic rounding; each update is a little more than a tenth of the distance between
// adjacent numbers.
void train(LinearLossModel& model, TrainStep::Options options, int64_t first_row, int64_t rows) {
  const auto optimizer = optim::build_optimizer(
      {.name = optim::OptimizerKind::stochastic_adamw, .lr = 1e-3, .weight_decay = 0.0},
      {.parameters = {{.name = "product.weight", .shape = {kSize}}}, .seed = 5});
  const ProbeTask task;
  options.local_batch_size = 1;
  options.compute = at::kBFloat16;
  TrainStep step(model, task, *optimizer, options);
  for (int64_t number = 1; number <= kSteps; ++number) {
    EXPECT_TRUE(step.run(some_tokens(first_row, rows), first_row, number, /*lr_factor=*/1).updated);
  }
}

at::Tensor trained_on_one_device() {
  LinearLossModel model(kSize);
  nn::materialize(model, at::kCPU, at::kBFloat16);
  model.set_weight(initial_weight());
  train(model, {}, 0, kBatchSize);
  return model.weight()->value().detach();
}

TEST(StochasticRounding, OnShardsHasTheBitsOfTheWholeParameter) {
  const at::Tensor whole = trained_on_one_device();
  const auto changed = whole.ne(initial_weight()).to(at::kDouble).mean().item<double>();
  ASSERT_GT(changed, 0.1) << "noise decides about nothing";
  ASSERT_LT(changed, 0.9) << "noise decides about nothing";
  for (const int64_t ranks : {2, 3}) {  // 3: shards of unequal sizes
    mesh::run_ranks(
        ranks,
        [&](mesh::Transport& transport) {
          const Ranks mesh(ParallelismConfig{}, &transport);
          LinearLossModel model(kSize);
          std::vector<shard::FullySharded> sharded;
          sharded.push_back(shard::fully_shard(
              *mesh.context(),
              model,
              {{"product", {model.product.ptr()}}},
              {.compute = at::kBFloat16, .reduce = at::kFloat}));
          nn::materialize(model, at::kCPU, at::kBFloat16);
          model.set_weight(initial_weight());
          const RowShare rows = mesh.share(kBatchSize);
          train(model, {.ranks = &mesh, .sharded = &sharded}, rows.first, rows.count);
          ASSERT_LT(model.weight()->value().numel(), kSize);
          EXPECT_TRUE(at::equal(model.weight()->value(), narrow_to(whole, model.weight()->box())))
              << "rank " << transport.rank() << " of " << ranks;
        },
        std::chrono::seconds(20));
  }
}

}  // namespace
}  // namespace lehr::train
