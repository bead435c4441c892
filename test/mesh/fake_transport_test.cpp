// The fake transport: a world of one process that stands for many.
#include "lehr/mesh/fake_transport.h"

#include <gtest/gtest.h>

#include "lehr/base/error.h"
#include "lehr/mesh/collectives.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/meter/operation_meter.h"

namespace lehr::mesh {
namespace {

TEST(FakeTransport, EveryRankHoldsTheTensorsOfThisRank) {
  const auto transport = fake_transport(5, 8);
  DistributedContext context({.data_parallel_shard = 4, .tensor_parallel = 2}, *transport);
  EXPECT_EQ(context.coordinates(), "dp_shard 2, tp 1");
  const Group& shard = context.group(axis::dp_shard);
  const at::Tensor x = at::arange(4, at::kDouble);
  EXPECT_TRUE(at::equal(all_gather(x, shard, 0), at::cat({x, x, x, x})));
  EXPECT_TRUE(at::equal(reduce_scatter(x, shard, 0), at::tensor({8.0})));  // chunk 2 of 4, four times
  EXPECT_TRUE(at::equal(all_reduce(x, shard), 4 * x));
  const at::Tensor rows = all_to_all(x.view({4, 1}), shard, {3, 0, 1, 2}, {1, 1, 1, 1});
  EXPECT_EQ(rows.sizes(), (std::vector<int64_t>{6, 1}));
  EXPECT_TRUE(at::equal(rows.view(-1), at::tensor({0.0, 1.0, 2.0, 3.0, 0.0, 1.0}, at::kDouble)));
  context.world().barrier();
}

TEST(FakeTransport, ThousandsOfRanksOnMetaCostNothingAndAreCounted) {
  std::vector<FakeCollective> seen;
  const auto transport =
      fake_transport(4095, 4096, [&](const FakeCollective& collective) { seen.push_back(collective); });
  DistributedContext context({.data_parallel_shard = 512, .tensor_parallel = 8}, *transport);
  const at::Tensor x = at::empty({1024, 1024}, at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  EXPECT_EQ(all_gather(x, context.group(axis::dp_shard), 0).sizes(), (std::vector<int64_t>{1024 * 512, 1024}));
  EXPECT_EQ(reduce_scatter(x, context.group(axis::tp), 1).sizes(), (std::vector<int64_t>{1024, 128}));
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[0].name, "all_gather");
  EXPECT_EQ(seen[0].group, "dp_shard");
  EXPECT_EQ(seen[0].size, 512);
  EXPECT_EQ(seen[0].bytes, 2 * 1024 * 1024);
  EXPECT_EQ(seen[1].group, "tp");
}

// A plan takes the counted work for that of the device.
TEST(FakeTransport, CollectivesOnMetaAreNoWork) {
  const auto transport = fake_transport(0, 8);
  DistributedContext context({.data_parallel_shard = 8}, *transport);
  const Group& shard = context.group(axis::dp_shard);
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);
  const at::Tensor whole = at::empty({64}, options);
  const at::Tensor part = at::empty({8}, options);
  const OperationMeter meter;
  shard.start_all_reduce(whole).wait();
  shard.start_reduce_scatter(part, whole).wait();
  shard.start_all_gather(whole, part).wait();
  EXPECT_EQ(meter.counts().pointwise_bytes, 0);
}

TEST(FakeTransport, TellsWhichCollectiveIsWaitedFor) {
  std::vector<size_t> waited;
  const auto transport = fake_transport(0, 4, {}, [&](size_t number) { waited.push_back(number); });
  DistributedContext context({.data_parallel_shard = 4}, *transport);
  const Group& group = context.group(axis::dp_shard);
  const at::Tensor part = at::ones({2});
  const at::Tensor whole = at::empty({8});
  Pending first = group.start_all_gather(whole, part);
  Pending second = group.start_all_reduce(part);
  second.wait();
  first.wait();
  first.wait();  // does nothing
  EXPECT_EQ(waited, (std::vector<size_t>{1, 0}));
}

TEST(FakeTransport, RefusesARankOutsideTheWorld) {
  EXPECT_THROW(fake_transport(8, 8), Error);
}

}  // namespace
}  // namespace lehr::mesh
