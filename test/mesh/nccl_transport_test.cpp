// Ranks on devices, without a real device: threads stand in for NCCL, and float32 tensors for those in GPU memory.
#include "lehr/mesh/nccl_transport.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <future>
#include <map>
#include <thread>

#include "every_collective.h"
#include "lehr/base/error.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/thread_backend.h"
#include "lehr/mesh/thread_transport.h"
#include "test/base/error_of.h"

namespace lehr::mesh {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// State that the devices of all ranks share: a communicator for each group, by name.
class Devices {
 public:
  explicit Devices(milliseconds timeout = milliseconds(20'000)) : timeout_(timeout) {}
  std::shared_ptr<ThreadCommunicator> communicator(const DeviceGroup& group) {
    const std::lock_guard lock(mutex_);
    auto& communicator = communicators_[group.name];
    if (!communicator) {
      communicator = std::make_shared<ThreadCommunicator>(group.name, group.size, abort_, timeout_);
    }
    return communicator;
  }
  std::vector<std::string> names() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, communicator] : communicators_) {
      names.push_back(name);
    }
    return names;
  }
  void abort() {
    {
      const std::lock_guard lock(abort_->mutex);
      abort_->aborted = true;
      abort_->message = "the device's connections are broken";
    }
    const std::lock_guard lock(mutex_);
    for (const auto& [name, communicator] : communicators_) {
      communicator->wake();
    }
  }

 private:
  milliseconds timeout_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<ThreadCommunicator>> communicators_;
  std::shared_ptr<ThreadAbort> abort_ = std::make_shared<ThreadAbort>();
};

// Work as on a GPU: the host continues immediately.
class Queued : public c10d::Work {
 public:
  explicit Queued(std::shared_future<void> done) : done_(std::move(done)) {}
  bool isCompleted() override { return done_.wait_for(milliseconds(0)) == std::future_status::ready; }
  bool isSuccess() const override { fail("isSuccess: NCCL's work does not say"); }
  bool wait(milliseconds timeout) override {
    require(timeout == kNoTimeout, "wait: NCCL's work would hold the host");
    return true;
  }

 private:
  std::shared_future<void> done_;
};

class QueueingBackend : public c10d::Backend {
 public:
  QueueingBackend(c10::intrusive_ptr<c10d::Backend> inner, Devices& devices)
      : c10d::Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), devices_(devices) {}
  const std::string getBackendName() const override { return "queueing"; }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    last_ = std::async(std::launch::async, [inner = inner_, before = last_, tensors, options]() mutable {
              if (before.valid()) {
                before.wait();  // in order, as on a stream
              }
              try {
                inner->allreduce(tensors, options);
              } catch (const std::exception&) {
                // Aborted: an aborted kernel of NCCL ends, too.
              }
            }).share();
    return c10::make_intrusive<Queued>(last_);
  }
  void abort() override { devices_.abort(); }

 private:
  c10::intrusive_ptr<c10d::Backend> inner_;
  Devices& devices_;
  std::shared_future<void> last_;
};

// Runs the body on ranks with devices, and returns the error of each ("" for success).
std::vector<std::string> on_devices(
    int64_t world_size,
    const ConnectDevices& connect,
    const std::function<void(Transport&)>& body,
    milliseconds timeout = milliseconds(10'000),
    const std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>)>& changed = {}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> problems(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        auto transport = nccl_transport(
            [&](std::function<void()> disconnect) {
              return gloo_transport(
                  store,
                  rank,
                  world_size,
                  /*local=*/true,
                  /*keeps_store=*/rank == 0,
                  {.init_timeout = milliseconds(10'000),
                   .timeout = timeout,
                   .patience = milliseconds(1500),
                   .disconnect = std::move(disconnect)});
            },
            {.device = at::kCPU, .connect = connect, .on_device = [](const at::Tensor& tensor) {
               return tensor.scalar_type() == at::kFloat;
             }});
        if (changed) {
          transport = changed(std::move(transport));
        }
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

ConnectDevices at_once(Devices& devices) {
  return [&](const DeviceGroup& group) { return make_thread_backend(devices.communicator(group), group.rank); };
}
ConnectDevices queueing(Devices& devices) {
  return [&](const DeviceGroup& group) {
    return c10::make_intrusive<QueueingBackend>(make_thread_backend(devices.communicator(group), group.rank), devices);
  };
}

TEST(NcclTransport, EqualsTheThreadTransportForTensorsOfTheHostAndOfTheDevice) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
    const DeviceMeshParameters mesh{.data_parallel_shard = 3};
    std::vector<std::vector<at::Tensor>> expected(3), found(3);
    run_ranks(3, [&](Transport& transport) {
      DistributedContext context(mesh, transport);
      expected[static_cast<size_t>(context.rank())] = every_collective(context.group(axis::dp_shard), type);
    });
    Devices devices;
    const auto problems = on_devices(3, at_once(devices), [&](Transport& transport) {
      DistributedContext context(mesh, transport);
      found[static_cast<size_t>(context.rank())] = every_collective(context.group(axis::dp_shard), type);
    });
    EXPECT_THAT(problems, testing::Each(""));
    for (size_t rank = 0; rank < 3; ++rank) {
      expect_equal(found[rank], expected[rank]);
    }
  }
}

// Two ranks connect at their first message, which blocks both, as with NCCL.
class MeetingBackend : public c10d::Backend {
 public:
  explicit MeetingBackend(c10::intrusive_ptr<c10d::Backend> inner)
      : c10d::Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}
  const std::string getBackendName() const override { return "meeting"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    meet();
    return inner_->send(tensors, to, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    meet();
    return inner_->recv(tensors, from, tag);
  }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return inner_->allreduce(tensors, options);
  }

 private:
  void meet() {
    if (!std::exchange(met_, true)) {
      inner_->barrier();
    }
  }
  c10::intrusive_ptr<c10d::Backend> inner_;
  bool met_ = false;
};

// The ring of context parallelism: each rank sends to the next one before it receives from the previous one.
void send_before_receiving(const Group& group) {
  const int64_t size = group.size();
  at::Tensor arriving = at::empty({1});
  Pending sending = group.start_send(at::full({1}, static_cast<double>(group.rank())), (group.rank() + 1) % size);
  Pending receiving = group.start_receive(arriving, (group.rank() + size - 1) % size);
  receiving.wait();
  sending.wait();
  EXPECT_EQ(arriving.item<int64_t>(), (group.rank() + size - 1) % size);
}

std::vector<DistributedContext::Route> ring_of(int64_t size) {
  std::vector<DistributedContext::Route> routes;
  for (int64_t rank = 0; rank < size; ++rank) {
    routes.push_back({.from = rank, .to = (rank + 1) % size});
  }
  return routes;
}

// With dp_shard 1 and as many ep ranks as cp ranks, the ring's group is that of the experts, whichever is asked for
// first.
TEST(NcclTransport, RanksThatSendBeforeTheyReceiveDoNotDeadlockInAnyGroup) {
  for (const bool connected : {true, false}) {
    Devices devices(milliseconds(connected ? 20'000 : 1000));
    const auto problems = on_devices(
        3,
        [&](const DeviceGroup& group) {
          return c10::make_intrusive<MeetingBackend>(make_thread_backend(devices.communicator(group), group.rank));
        },
        [&](Transport& transport) {
          DistributedContext context({.context_parallel = 3, .expert_parallel = 3}, transport);
          EXPECT_EQ(context.group(axis::ep).name(), "ep");
          const Group& ring = context.group(axis::cp);
          EXPECT_EQ(&ring, &context.group(axis::ep));
          if (connected) {
            context.connect_messages(ring, ring_of(3));
            EXPECT_EQ(transport.num_communicators(), 2);
          }
          send_before_receiving(ring);
        });
    if (connected) {
      EXPECT_THAT(problems, testing::Each(""));
    } else {
      EXPECT_THAT(problems, testing::Each(testing::Not(""))) << "the test would not see a ring that hangs";
    }
  }
}

TEST(NcclTransport, ConnectsOnlyGroupsThatAreUsedOnTheDevice) {
  Devices devices;
  const auto problems = on_devices(2, at_once(devices), [](Transport& transport) {
    DistributedContext context({.tensor_parallel = 2}, transport);
    const Group& tp = context.group(axis::tp);
    EXPECT_EQ(&tp, &context.world());
    at::Tensor x = at::ones({1}, at::kLong);  // a tensor of the host
    tp.all_reduce(x);
    tp.barrier();
    EXPECT_EQ(transport.num_communicators(), 0);
    x = at::ones({1});
    tp.all_reduce(x);
    tp.all_reduce(x);
    EXPECT_EQ(transport.num_communicators(), 1);
  });
  EXPECT_THAT(problems, testing::Each(""));
  EXPECT_THAT(devices.names(), testing::ElementsAre("devices/tp:0,1#1"));
}

TEST(NcclTransport, EachDirectionBetweenTwoRanksHasAConnection) {
  Devices others;
  const auto problems = on_devices(2, at_once(others), [](Transport& transport) {
    DistributedContext context({.tensor_parallel = 2}, transport);
    const Group& tp = context.group(axis::tp);
    at::Tensor x = at::ones({1});  // float32: a tensor of the device
    if (tp.rank() == 0) {
      tp.start_send(x, 1).wait();
    } else {
      tp.start_receive(x, 0).wait();
    }
    at::Tensor y = at::ones({1}, at::kLong);  // a tensor of the host, in the other direction
    if (tp.rank() == 1) {
      tp.start_send(y, 0).wait();
    } else {
      tp.start_receive(y, 1).wait();
    }
  });
  EXPECT_THAT(problems, testing::Each(""));
  EXPECT_THAT(others.names(), testing::ElementsAre("devices/tp:0,1#1/0>1"));
}

// The host has waited for the collective, which does not block on a device. It then reads a number from the device,
// which arrives only when the collective is aborted.
TEST(NcclTransport, ACollectiveThatHangsOnTheDeviceIsReportedAndAborted) {
  Devices devices;
  const auto start = std::chrono::steady_clock::now();
  const auto problems = on_devices(
      3,
      queueing(devices),
      [&](Transport& transport) {
        DistributedContext context({.data_parallel_shard = 3}, transport);
        const Group& group = context.group(axis::dp_shard);
        at::Tensor x = at::ones({2});
        group.all_reduce(x);
        if (context.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(2600));  // busy with something else
        } else {
          group.all_reduce(x);
          EXPECT_NO_THROW(transport.check()) << "the host must go on";
          std::this_thread::sleep_for(milliseconds(2600));
        }
        context.world().barrier();
      },
      milliseconds(1000));
  EXPECT_THAT(
      problems[0], HasSubstr("all_reduce number 2 on axis dp_shard (ranks 0, 1, 2) was not finished within 1 s"));
  EXPECT_THAT(
      problems[0],
      HasSubstr("rank 1 (dp_shard 1) did not enter the collective; it is computing; its last collective was"));
  EXPECT_THAT(problems[0], testing::Not(HasSubstr("rank 2 (")));
  EXPECT_THAT(problems, testing::Each(problems[0])) << "all ranks say the same";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(NcclTransport, ARankThatThrowsReleasesTheOthersFromTheirDevices) {
  Devices devices;
  const auto start = std::chrono::steady_clock::now();
  const auto problems = on_devices(2, queueing(devices), [&](Transport& transport) {
    DistributedContext context({.tensor_parallel = 2}, transport);
    const Group& tp = context.group(axis::tp);
    at::Tensor x = at::ones({1});
    tp.all_reduce(x);
    if (transport.rank() == 1) {
      fail("no disk");
    }
    tp.all_reduce(x);
    // The host now waits for its device, as in a read of x, and calls no collective.
    for (int i = 0; i < 100; ++i) {
      transport.check();
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  EXPECT_EQ(problems[0], "rank 1 (tp 1) failed: no disk");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << "the device was not freed";
}

// If not every rank has a GPU of its own, those that have one do not use it.
TEST(NcclTransport, RanksOnTheCpuCommunicateWithoutTheirDevices) {
  Devices devices;
  const auto problems = on_devices(
      2,
      at_once(devices),
      [](Transport& transport) {
        EXPECT_EQ(transport.name(), "gloo");
        EXPECT_TRUE(transport.device().is_cpu());
        EXPECT_FALSE(transport.connects_by_messages());
        DistributedContext context({.tensor_parallel = 2}, transport);
        at::Tensor x = at::ones({1});
        context.world().all_reduce(x);
        EXPECT_EQ(x.item<int64_t>(), 2);
      },
      milliseconds(10'000),
      hosts_of);
  EXPECT_THAT(problems, testing::Each(""));
  EXPECT_THAT(devices.names(), testing::IsEmpty());
}

// If the build has the module, it is loaded: LibTorch's CUDA libraries load without a GPU, too. No machine has a GPU
// number 99; where a rank sees exactly one GPU, that counts as its own (gpu_of_rank), and the rank looks for the
// others.
TEST(ConnectRanks, OnADeviceRefuseBuildsWithoutNcclAndRanksWithoutADevice) {
  const std::string problem = error_of([] {
    connect_ranks(
        {.launcher = "torchrun",
         .rank = 1,
         .world_size = 100,
         .local_rank = 99,
         .master_address = "127.0.0.1",
         .master_port = 1},
        {.init_timeout = milliseconds(200), .device = at::kCUDA});
  });
  if (built_with_nccl()) {
    EXPECT_THAT(
        problem,
        testing::AnyOf(
            HasSubstr("training.device: this rank is number 99 on its machine, where it sees"),
            HasSubstr("rank 1: nobody answers at 127.0.0.1:1 within 0.2 s")));
  } else {
    EXPECT_THAT(problem, HasSubstr("training.device: ranks on GPUs need NCCL, which this build of Lehr does not have"));
  }
}

}  // namespace
}  // namespace lehr::mesh
