// Collectives among threads: their values, their gradients, and errors when ranks do not agree.
#include "lehr/mesh/collectives.h"

#include <gmock/gmock.h>

#include <atomic>

#include "lehr/base/error.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/thread_transport.h"
#include "test/base/error_of.h"

namespace lehr::mesh {
namespace {

using testing::HasSubstr;

// Runs the body on every rank of a mesh.
void on_mesh(const DeviceMeshParameters& mesh, const std::function<void(DistributedContext&)>& body) {
  run_ranks(
      mesh.world_size(),
      [&](Transport& transport) {
        DistributedContext context(mesh, transport);
        body(context);
      },
      std::chrono::seconds(20));
}

at::Tensor ranks_rows(int64_t rank, int64_t rows = 2, int64_t columns = 3) {
  return at::arange(rows * columns, at::kDouble).view({rows, columns}) + 100.0 * static_cast<double>(rank);
}

TEST(Collectives, AllReduceReturnsTheSumOrTheMaximumOfAllRanks) {
  on_mesh({.data_parallel_replicate = 3}, [](DistributedContext& context) {
    const Group& world = context.world();
    const auto rank = static_cast<double>(world.rank());
    at::Tensor sum = at::tensor({1.0, -rank, 10 * rank}, at::kDouble);
    at::Tensor largest = sum.clone();
    world.all_reduce(sum);
    world.all_reduce_max(largest);
    EXPECT_TRUE(at::equal(sum, at::tensor({3.0, -3.0, 30.0}, at::kDouble)));
    EXPECT_TRUE(at::equal(largest, at::tensor({1.0, 0.0, 20.0}, at::kDouble)));
  });
}

TEST(Collectives, GatherAndScatterAreInverseAlongEveryDimension) {
  on_mesh({.tensor_parallel = 4}, [](DistributedContext& context) {
    const Group& tp = context.group(axis::tp);
    for (const int64_t dim : {0, 1}) {
      std::vector<at::Tensor> parts;
      for (int64_t rank = 0; rank < 4; ++rank) {
        parts.push_back(ranks_rows(rank));
      }
      const at::Tensor whole = all_gather(ranks_rows(tp.rank()), tp, dim);
      EXPECT_TRUE(at::equal(whole, at::cat(parts, dim)));
      EXPECT_TRUE(at::equal(take_shard(whole, tp, dim), ranks_rows(tp.rank())));
      EXPECT_TRUE(at::equal(reduce_scatter(whole, tp, dim), 4 * ranks_rows(tp.rank())));
    }
  });
}

// The function is sum_r <output_r, weight_r> of the inputs of all ranks; each rank must get the gradient of its own
// input.
TEST(Collectives, GradientsAreThoseOfTheSumOverRanks) {
  on_mesh({.tensor_parallel = 2}, [](DistributedContext& context) {
    const Group& tp = context.group(axis::tp);
    const auto weight = [](int64_t rank, int64_t rows) {
      return at::full({rows, 3}, 1.0 + static_cast<double>(rank), at::kDouble);
    };
    at::Tensor x = ranks_rows(tp.rank()).requires_grad_();
    (all_gather(x, tp, 0) * weight(tp.rank(), 4)).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2, 3}, 3.0, at::kDouble)));

    x = ranks_rows(tp.rank()).requires_grad_();
    (reduce_scatter(x, tp, 0) * weight(tp.rank(), 1)).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::cat({weight(0, 1), weight(1, 1)})));

    // Work after an all_reduce is the same on both ranks and counts once.
    x = ranks_rows(tp.rank()).requires_grad_();
    (all_reduce(x, tp) * weight(0, 2)).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), weight(0, 2)));

    x = ranks_rows(0).requires_grad_();
    (enter_replicated(x, tp) * weight(tp.rank(), 2)).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2, 3}, 3.0, at::kDouble)));
  });
}

TEST(Collectives, AllToAllSendsUnevenAndEmptyPartsAndTheirGradientsBack) {
  on_mesh({.tensor_parallel = 3}, [](DistributedContext& context) {
    const Group& tp = context.group(axis::tp);
    const int64_t me = tp.rank();
    // Rank r sends r rows to each rank.
    const std::vector<int64_t> sent(3, me);
    const at::Tensor x = (at::zeros({3 * me, 2}, at::kDouble) + static_cast<double>(me)).requires_grad_();
    const at::Tensor got = all_to_all(x, tp, {0, 1, 2}, sent);
    EXPECT_TRUE(at::equal(got.select(1, 0), at::tensor({1.0, 2.0, 2.0}, at::kDouble)));
    (got * (10.0 + static_cast<double>(me))).sum().backward();
    for (int64_t to = 0; to < 3; ++to) {
      for (int64_t row = 0; row < me; ++row) {
        EXPECT_EQ(x.grad()[to * me + row][0].item<double>(), 10.0 + static_cast<double>(to));
      }
    }
  });
}

TEST(Collectives, ThreadsThatCallDifferentCollectivesGetAnErrorThatNamesBoth) {
  try {
    on_mesh({.tensor_parallel = 2}, [](DistributedContext& context) {
      const Group& tp = context.group(axis::tp);
      at::Tensor x = at::ones({tp.rank() + 1});
      tp.all_reduce(x);
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::runtime);
    EXPECT_THAT(error.what(), HasSubstr("all_reduce of 1 Float"));
    EXPECT_THAT(error.what(), HasSubstr("all_reduce of 2 Float"));
    EXPECT_THAT(error.what(), HasSubstr("axis tp"));
  }
}

TEST(Collectives, ARankThatThrowsEndsTheOthersWithItsMessage) {
  std::atomic<int> others = 0;
  try {
    on_mesh({.data_parallel_replicate = 4}, [&](DistributedContext& context) {
      if (context.rank() == 2) {
        fail("rank 2 has had enough");
      }
      try {
        context.world().barrier();
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("rank 2 has had enough"));
        ++others;
        throw;
      }
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 2 has had enough");
  }
  EXPECT_EQ(others, 3);
}

TEST(DistributedContext, NumbersRanksInRowMajorOrder) {
  const DeviceMeshParameters mesh{
      .data_parallel_shard = 2, .context_parallel = 2, .tensor_parallel = 2, .expert_parallel = 4};
  on_mesh(mesh, [](DistributedContext& context) {
    const int64_t rank = context.rank();
    EXPECT_EQ(context.index(axis::tp), rank % 2);
    EXPECT_EQ(context.index(axis::cp), rank / 2 % 2);
    EXPECT_EQ(context.index(axis::dp_shard), rank / 4);
    EXPECT_EQ(context.index(axis::fsdp), rank / 2);
    EXPECT_EQ(context.index(axis::ep), rank % 4);
    EXPECT_EQ(context.index(axis::ep_shard), rank / 4);
    EXPECT_EQ(context.data_parallel_size(), 2);
    EXPECT_EQ(context.data_parallel_rank(), rank / 4);
    EXPECT_EQ(context.group(axis::tp).ranks(), (std::vector<int64_t>{rank / 2 * 2, rank / 2 * 2 + 1}));
    EXPECT_EQ(context.group(axis::ep).ranks().front(), rank / 4 * 4);
    EXPECT_EQ(
        context.group(axis::fsdp).ranks(), (std::vector<int64_t>{rank % 2, rank % 2 + 2, rank % 2 + 4, rank % 2 + 6}));
    EXPECT_EQ(context.group({axis::dp_shard, axis::tp}).rank(), rank / 4 * 2 + rank % 2);
    EXPECT_EQ(context.world().size(), 8);
    EXPECT_EQ(
        context.coordinates(),
        fmt::format("dp_shard {}, cp {}, tp {}, ep {}", rank / 4, rank / 2 % 2, rank % 2, rank % 4));
  });
  on_mesh({.data_parallel_replicate = 2, .data_parallel_shard = 3}, [](DistributedContext& context) {
    EXPECT_EQ(context.data_parallel_rank(), context.rank());
  });
}

TEST(DistributedContext, RefusesDegreesThatDoNotFit) {
  const auto problem = [](const DeviceMeshParameters& mesh, int64_t world) {
    return any_error::error_of([&] { mesh.check(world); });
  };
  EXPECT_THAT(problem({.data_parallel_shard = 4, .expert_parallel = 3}, 4), HasSubstr("3 does not divide the 4 ranks"));
  EXPECT_THAT(problem({.tensor_parallel = 0}, 1), HasSubstr("tensor_parallel_degree: expected 1 or more, found 0"));
  EXPECT_THAT(problem({.data_parallel_shard = 4}, 2), HasSubstr("ask for 4 ranks (dp_shard 4), and 2 were started"));
}

}  // namespace
}  // namespace lehr::mesh
