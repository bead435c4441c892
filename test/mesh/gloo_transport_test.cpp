// Gloo among threads of this process: the values of the thread transport, and the messages of failures.
#include "lehr/mesh/gloo_transport.h"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <unistd.h>

#include <future>
#include <thread>

#include "every_collective.h"
#include "lehr/base/error.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/gloo_backend.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/meter/memory_meter.h"

namespace lehr::mesh {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

const GlooOptions kQuick{
    .init_timeout = milliseconds(10'000), .timeout = milliseconds(10'000), .patience = milliseconds(1500)};

// Runs the body on ranks of Gloo, and returns the error of each ("" for success).
std::vector<std::string> on_gloo(
    int64_t world_size,
    const std::function<void(Transport&)>& body,
    const GlooOptions& options = kQuick,
    int64_t first = 0) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> problems(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int64_t rank = first; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        const auto transport = gloo_transport(store, rank, world_size, true, rank == 0, options);
        run_connected(*transport, [&] { body(*transport); });
      } catch (const std::exception& problem) {
        problems[static_cast<size_t>(rank)] = problem.what();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return problems;
}

TEST(GlooTransport, EqualsTheThreadTransportInEveryType) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
    const DeviceMeshParameters mesh{.data_parallel_shard = 3};
    std::vector<std::vector<at::Tensor>> expected(3), found(3);
    run_ranks(3, [&](Transport& transport) {
      DistributedContext context(mesh, transport);
      expected[static_cast<size_t>(context.rank())] = every_collective(context.group(axis::dp_shard), type);
    });
    const auto problems = on_gloo(3, [&](Transport& transport) {
      DistributedContext context(mesh, transport);
      found[static_cast<size_t>(context.rank())] = every_collective(context.group(axis::dp_shard), type);
    });
    EXPECT_THAT(problems, testing::Each(""));
    for (size_t rank = 0; rank < 3; ++rank) {
      expect_equal(found[rank], expected[rank]);
    }
  }
}

TEST(GlooTransport, AFinishedCollectiveHoldsNoMemory) {
  const auto problems = on_gloo(2, [](Transport& transport) {
    DistributedContext context({.data_parallel_shard = 2}, transport);
    const Group& group = context.group(axis::dp_shard);
    const auto tensor = [](int64_t count) { return at::ones({count}); };
    const auto expect_let_go = [](const char* what, const at::Tensor& output, const at::Tensor& input) {
      const auto held = [&] { return output.storage().use_count() > 1 || input.storage().use_count() > 1; };
      for (int i = 0; i < 500 && held(); ++i) {  // Gloo's thread releases tensors only after it has reported the end
        std::this_thread::sleep_for(milliseconds(10));
      }
      EXPECT_FALSE(held()) << what;
    };
    for (int round = 0; round < 3; ++round) {
      const at::Tensor sum = tensor(8), two = tensor(8), one = tensor(4), parts = tensor(8), part = tensor(4);
      group.all_reduce(sum);
      expect_let_go("all_reduce", sum, sum);
      group.all_gather(two, one);
      expect_let_go("all_gather", two, one);
      group.reduce_scatter(part, parts);
      expect_let_go("reduce_scatter", part, parts);
      group.all_to_all(two, parts, {4, 4}, {4, 4});
      expect_let_go("all_to_all", two, parts);
      group.broadcast(one, 1);
      expect_let_go("broadcast", one, one);
    }
  });
  EXPECT_THAT(problems, testing::Each(""));
}

TEST(GlooTransport, AReductionInFlightHoldsACopyOfItsInput) {
  const auto held = [](Transport& transport) {
    DistributedContext context({.data_parallel_shard = 2}, transport);
    const Group& group = context.group(axis::dp_shard);
    const at::Tensor whole = at::ones({1000}), part = at::empty({500});
    const MemoryMeter meter(at::kCPU);
    Pending pending = group.start_reduce_scatter(part, whole);
    const bool copied = meter.now() >= static_cast<int64_t>(whole.nbytes());
    pending.wait();
    EXPECT_EQ(transport.copies_reductions(), copied) << transport.name();
    return copied;
  };
  const auto problems = on_gloo(2, [&](Transport& transport) { EXPECT_TRUE(held(transport)); });
  EXPECT_THAT(problems, testing::Each(""));
  run_ranks(2, [&](Transport& transport) { EXPECT_FALSE(held(transport)); });
}

// isCompleted() must not take the arrival of the chunks for the end of their sum.
TEST(GlooTransport, ReduceScatterIsCompletedWithItsSum) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto run = [&](int rank) {
    const GlooBackend connected = connect_gloo(
        store,
        {.rank = rank,
         .size = 2,
         .local = true,
         .init_timeout = milliseconds(10'000),
         .timeout = milliseconds(10'000)});
    at::Tensor part = at::zeros({2}), parts = at::arange(4, at::kFloat);
    const auto work = connected.collectives->_reduce_scatter_base(part, parts, {});
    std::this_thread::sleep_for(milliseconds(300));  // all chunks have arrived by now
    EXPECT_FALSE(work->isCompleted());
    EXPECT_TRUE(work->wait(milliseconds(10'000)));
    EXPECT_TRUE(work->isCompleted() && work->isSuccess());
    EXPECT_TRUE(at::equal(part, at::tensor({4.F * static_cast<float>(rank), 4.F * static_cast<float>(rank) + 2.F})));
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

// A wait that times out before all chunks have arrived must not be taken for the end.
TEST(GlooTransport, ReduceScatterWaitsForADelayedRank) {
  std::vector<at::Tensor> found(3);
  const auto problems = on_gloo(3, [&](Transport& transport) {
    DistributedContext context({.data_parallel_shard = 3}, transport);
    if (context.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(700));  // the others poll every 250 ms
    }
    at::Tensor part = at::empty({2}, at::kDouble);
    const auto rank = static_cast<double>(context.rank());
    context.group(axis::dp_shard).reduce_scatter(part, at::arange(6, at::kDouble) * (rank + 1));
    found[static_cast<size_t>(context.rank())] = part;
  });
  EXPECT_THAT(problems, testing::Each(""));
  for (size_t rank = 0; rank < 3; ++rank) {
    const auto first = static_cast<double>(2 * rank);
    EXPECT_TRUE(at::equal(found[rank], at::tensor({6 * first, 6 * (first + 1)}, at::kDouble))) << found[rank];
  }
}

TEST(GlooTransport, ConnectsEveryAxisOfAMeshAndASecondMesh) {
  const auto problems = on_gloo(4, [](Transport& transport) {
    for (int round = 0; round < 2; ++round) {
      DistributedContext context({.data_parallel_shard = 2, .tensor_parallel = 2}, transport);
      at::Tensor x = at::full({1}, 1.0 + static_cast<double>(context.rank()), at::kDouble);
      context.group(axis::tp).all_reduce(x);
      context.group(axis::dp_shard).all_reduce(x);
      EXPECT_EQ(x.item<double>(), 10.0);
      context.world().barrier();
    }
  });
  EXPECT_THAT(problems, testing::Each(""));
}

TEST(GlooTransport, ADelayedRankIsNamedWithItsActivity) {
  GlooOptions options = kQuick;
  options.timeout = milliseconds(1000);
  const auto problems = on_gloo(
      3,
      [](Transport& transport) {
        DistributedContext context({.data_parallel_shard = 3}, transport);
        const Group& group = context.group(axis::dp_shard);
        at::Tensor x = at::ones({2});
        group.all_reduce(x);
        if (context.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(2600));  // busy with something else
        }
        group.all_gather(at::empty({6}), x);
      },
      options);
  EXPECT_THAT(
      problems[0], HasSubstr("all_gather number 2 on axis dp_shard (ranks 0, 1, 2) was not finished within 1 s"));
  EXPECT_THAT(
      problems[0],
      HasSubstr("rank 1 (dp_shard 1) did not enter the collective; it is computing; its last collective was all_reduce "
                "number 1 on axis dp_shard"));
  EXPECT_THAT(problems[0], Not(HasSubstr("rank 2 (")));
  EXPECT_THAT(problems, testing::Each(problems[0])) << "all ranks say the same";
}

TEST(GlooTransport, AMessageHasTheTimeLimitOfCollectives) {
  GlooOptions options = kQuick;
  options.timeout = milliseconds(1000);
  options.init_timeout = milliseconds(60'000);
  std::promise<void> gave_up;
  const auto problems = on_gloo(
      2,
      [&](Transport& transport) {
        DistributedContext context({.pipeline_parallel = 2}, transport);
        const Group& group = context.group(axis::pp);
        group.all_reduce(at::ones({2}));  // connects the ranks
        if (context.rank() == 0) {
          try {
            group.start_receive(at::empty({2}), 1).wait();
          } catch (const std::exception&) {
            gave_up.set_value();
            throw;
          }
        } else {
          // Sends nothing, and stays, since the end of the connection would end the wait.
          EXPECT_EQ(gave_up.get_future().wait_for(milliseconds(20'000)), std::future_status::ready);
        }
      },
      options);
  EXPECT_THAT(problems[0], HasSubstr("receive on axis pp (ranks 0, 1) was not finished within 1 s"));
}

TEST(GlooTransport, ARankWithoutHeartbeatsIsCalledSilent) {
  GlooOptions options = kQuick;
  options.timeout = milliseconds(800);
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  store->set("start/here/1", std::string("1"));
  const auto transport = gloo_transport(store, 0, 2, true, true, {.patience = milliseconds(300)});
  Watchdog& watch = *transport->watch();
  const size_t group = watch.log().add_group("tp", "0,1");
  const int64_t ticket = watch.log().begin(group, "all_reduce", 8, true);
  try {
    watch.explain(ticket, {0, 1}, "Connection closed by peer");
    FAIL();
  } catch (const PeerFailure& error) {
    EXPECT_STREQ(error.what(), "all_reduce number 1 on axis tp (ranks 0, 1) failed: rank 1 is silent: dead or hung");
    EXPECT_EQ(error.kind(), ErrorKind::runtime);
  }
  transport->abort("done");
}

TEST(GlooTransport, DifferentCollectivesWithTheSameNumberAreNamed) {
  GlooOptions options = kQuick;
  options.timeout = milliseconds(1000);
  const auto problems = on_gloo(
      2,
      [](Transport& transport) {
        DistributedContext context({.tensor_parallel = 2}, transport);
        at::Tensor x = at::ones({2});
        if (context.rank() == 0) {
          context.group(axis::tp).broadcast(x, 1);
        } else {
          context.group(axis::tp).all_gather(at::empty({4}), x);
        }
      },
      options);
  EXPECT_THAT(
      problems[0],
      testing::AnyOf(
          HasSubstr("rank 1 (tp 1) called all_gather of 24 bytes, not of 8, as this number"),
          HasSubstr("rank 0 (tp 0) called broadcast of 8 bytes, not of 24, as this number")));
}

TEST(GlooTransport, ARankThatThrowsEndsTheOthersWithItsMessage) {
  GlooOptions options = kQuick;
  options.timeout = milliseconds(60'000);
  const auto start = std::chrono::steady_clock::now();
  const auto problems = on_gloo(
      4,
      [](Transport& transport) {
        DistributedContext context({.data_parallel_shard = 2, .tensor_parallel = 2}, transport);
        const Group& world = context.world();
        at::Tensor x = at::ones({4});
        world.all_reduce(x);
        // One collective is in flight that the failing rank never waits for.
        Pending ahead = context.rank() == 3 ? Pending() : world.start_all_reduce(x);
        if (context.rank() == 3) {
          fail("batch 7: the loss is not finite");
        }
        ahead.wait();
      },
      options);
  for (const size_t rank : {0, 1, 2}) {
    EXPECT_EQ(problems[rank], "rank 3 (dp_shard 1, tp 1) failed: batch 7: the loss is not finite");
  }
  EXPECT_EQ(problems[3], "batch 7: the loss is not finite");
  EXPECT_LT(std::chrono::steady_clock::now() - start, options.timeout) << "no rank waited for its time limit";
}

TEST(GlooTransport, ARankThatFailsWhileOthersComputeFailsTheirNextCollective) {
  const auto problems = on_gloo(2, [](Transport& transport) {
    DistributedContext context({.tensor_parallel = 2}, transport);
    const Group& tp = context.group(axis::tp);
    if (transport.rank() == 1) {
      fail("no disk");
    }
    std::this_thread::sleep_for(milliseconds(800));
    at::Tensor x = at::ones({1});
    tp.all_reduce(x);
  });
  EXPECT_EQ(problems[0], "rank 1 (tp 1) failed: no disk");
}

TEST(GlooTransport, RanksThatDoNotStartAreNamed) {
  GlooOptions options = kQuick;
  options.init_timeout = milliseconds(500);
  const auto problems = on_gloo(
      3, [](Transport&) {}, options, 1);
  EXPECT_EQ(problems[1], "rank 1: rank 0 of 3 did not reach the start within 0.5 s");
}

// A port that is probably free: it is below those that the system assigns to connections of other tests.
int64_t free_port() {
  for (int port = 20000 + getpid() % 10000;; ++port) {
    const int probe = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool is_free = ::bind(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(probe);
    if (is_free) {
      return port;
    }
  }
}

TEST(GlooTransport, ConnectsOverTcpAndKeepsTheStoreUntilAllRanksHaveLeft) {
  const int64_t port = free_port();
  std::vector<std::string> problems(3);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto transport = gloo_transport(
            {.launcher = "srun", .rank = rank, .world_size = 3, .master_address = "127.0.0.1", .master_port = port},
            kQuick);
        DistributedContext context({.tensor_parallel = 3}, *transport);
        at::Tensor x = at::ones({1});
        context.world().all_reduce(x);
        if (rank > 0) {
          std::this_thread::sleep_for(milliseconds(300 * rank));
          context.transport().store()->set("late", std::string("1"));  // rank 0 has long finished
        }
      } catch (const std::exception& problem) {
        problems[static_cast<size_t>(rank)] = problem.what();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(problems, testing::Each(""));
}

TEST(ConnectRanks, OneRankNeedsNoConnection) {
  const auto transport = connect_ranks(RankEnvironment{}, {.device = at::kCUDA});
  DistributedContext context({}, *transport);
  at::Tensor x = at::ones({1});
  context.world().all_reduce(x);
  EXPECT_EQ(x.item<double>(), 1.0);
  EXPECT_EQ(context.coordinates(), "");
}

TEST(GlooTransport, AnAddressWhereNobodyAnswersIsNamed) {
  try {
    gloo_transport(
        {.launcher = "srun", .rank = 1, .world_size = 2, .master_address = "127.0.0.1", .master_port = 1},
        {.init_timeout = milliseconds(500)});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1: nobody answers at 127.0.0.1:1 within 0.5 s"));
  }
}

}  // namespace
}  // namespace lehr::mesh
