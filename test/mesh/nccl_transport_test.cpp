// Ranks on devices without a device: threads stand for NCCL, and float32 tensors for those in a GPU's memory.
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

namespace lehr::mesh {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// What the ranks' devices share: a room for each group by name.
class Devices {
 public:
  std::shared_ptr<ThreadRoom> room(const DeviceGroup& group) {
    const std::lock_guard lock(mutex_);
    auto& room = rooms_[group.name];
    if (!room) {
      room = std::make_shared<ThreadRoom>(group.name, group.size, abort_, std::chrono::seconds(20));
    }
    return room;
  }
  std::vector<std::string> names() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, room] : rooms_) {
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
    for (const auto& [name, room] : rooms_) {
      room->wake();
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<ThreadRoom>> rooms_;
  std::shared_ptr<ThreadAbort> abort_ = std::make_shared<ThreadAbort>();
};

// Work as a GPU does it: the host goes on at once.
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
                before.wait();  // one after the other, as on a stream
              }
              try {
                inner->allreduce(tensors, options);
              } catch (const std::exception&) {
                // Broken off: a kernel of NCCL's that was aborted ends as well.
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

// Runs the body on ranks with devices, and gives what each ended with ("" for success).
std::vector<std::string> on_devices(
    int64_t world_size,
    const ConnectDevices& connect,
    const std::function<void(Transport&)>& body,
    milliseconds timeout = milliseconds(10'000)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> problems(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        const auto transport = nccl_transport(
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
  return [&](const DeviceGroup& group) { return make_thread_backend(devices.room(group), group.rank); };
}
ConnectDevices queueing(Devices& devices) {
  return [&](const DeviceGroup& group) {
    return c10::make_intrusive<QueueingBackend>(make_thread_backend(devices.room(group), group.rank), devices);
  };
}

TEST(NcclTransport, GivesTheValuesOfTheThreadTransportForTensorsOfTheHostAndOfTheDevice) {
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

TEST(NcclTransport, EachDirectionBetweenTwoRanksHasAConnectionAndNeighboursOfAPipelineHaveThemFromTheStart) {
  Devices devices;
  auto problems = on_devices(3, at_once(devices), [](Transport& transport) {
    DistributedContext context({.pipeline_parallel = 3}, transport);
    context.group(axis::pp);
    context.wait_world();
  });
  EXPECT_THAT(problems, testing::Each(""));
  const std::string group = "devices/pp:0,1,2#1";
  EXPECT_THAT(
      devices.names(),
      testing::IsSupersetOf(
          {group, group + "/0>1", group + "/1>0", group + "/1>2", group + "/2>1", group + "/2>0", group + "/0>2"}));

  Devices others;
  problems = on_devices(2, at_once(others), [](Transport& transport) {
    DistributedContext context({.tensor_parallel = 2}, transport);
    const Group& tp = context.group(axis::tp);
    at::Tensor x = at::ones({1});  // float32: of the device
    if (tp.rank() == 0) {
      tp.start_send(x, 1).wait();
    } else {
      tp.start_receive(x, 0).wait();
    }
    at::Tensor y = at::ones({1}, at::kLong);  // of the host, the other way
    if (tp.rank() == 1) {
      tp.start_send(y, 0).wait();
    } else {
      tp.start_receive(y, 1).wait();
    }
  });
  EXPECT_THAT(problems, testing::Each(""));
  EXPECT_THAT(others.names(), testing::ElementsAre("devices/tp:0,1#1", "devices/tp:0,1#1/0>1"));
}

// The host has waited for the collective, which on a device takes no time, and reads something of the device: a number
// that comes when the collective has been broken off.
TEST(NcclTransport, ACollectiveThatHangsOnTheDeviceIsExplainedAndBroken) {
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
        context.wait_world();
      },
      milliseconds(1000));
  EXPECT_THAT(
      problems[0], HasSubstr("all_reduce number 2 on axis dp_shard (ranks 0, 1, 2) was not finished within 1 s"));
  EXPECT_THAT(problems[0], HasSubstr("rank 1 (dp_shard 1) did not come: it computes; its last collective was"));
  EXPECT_THAT(problems[0], testing::Not(HasSubstr("rank 2 (")));
  EXPECT_THAT(problems, testing::Each(problems[0])) << "all ranks say the same";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(NcclTransport, ARankThatThrowsFreesTheOthersFromTheirDevices) {
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
    // The host now waits for its device, as a read of x would, and comes to no collective.
    for (int i = 0; i < 100; ++i) {
      transport.check();
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  EXPECT_EQ(problems[0], "rank 1 (tp 1) failed: no disk");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << "the device was not freed";
}

std::string problem_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "";
}

// Where the build has the module, it is opened: LibTorch's CUDA half loads without a GPU too. A GPU of number 99 is
// nowhere.
TEST(ConnectRanks, GpusNeedNcclAndAGpuForEachRank) {
  const std::string problem = problem_of([] {
    connect_ranks({.launcher = "torchrun", .rank = 1, .world_size = 100, .local_rank = 99}, {.device = at::kCUDA});
  });
  EXPECT_THAT(problem, HasSubstr("training.device: "));
  if (built_with_nccl()) {
    EXPECT_THAT(problem, HasSubstr("this rank is number 99 on its machine, which has"));
  } else {
    EXPECT_THAT(problem, HasSubstr("ranks on GPUs need NCCL, which this build of Lehr does not have"));
  }
}

}  // namespace
}  // namespace lehr::mesh
