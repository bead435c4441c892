// The watchdog over work of a device: a query or an abort of the work may wait for other threads of the rank.
#include "lehr/mesh/watchdog.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <future>
#include <thread>

#include "lehr/mesh/device_backend.h"
#include "lehr/mesh/rank_reports.h"
#include "lehr/mesh/thread_backend.h"

namespace lehr::mesh {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// A rank of two, with its watchdog.
struct Rank {
  explicit Rank(milliseconds timeout = milliseconds(60'000)) {
    watch = std::make_unique<Watchdog>(
        store,
        Watchdog::Options{
            .rank = 0,
            .world_size = 2,
            .timeout = timeout,
            .patience = milliseconds(300),
            .disconnect =
                [this] {
                  need_the_lock();
                  ++disconnected;
                },
            .time_of_day =
                [this] {
                  return std::chrono::system_clock::now() -
                         (is_set_back ? std::chrono::hours(1) : std::chrono::hours(0));
                }});
    group = watch->log().add_group("tp", "0,1");
  }
  int64_t begin(const char* name, bool message) { return watch->log().begin(group, name, 4, !message); }

  // Returns when another thread has called the watchdog: never, if this one holds the watchdog's lock.
  void need_the_lock() {
    std::async(std::launch::async, [this] { watch->set_coordinates([](int64_t) { return std::string(); }); }).get();
  }
  // A failure of the other rank, which this rank soon sees.
  void fail_elsewhere() { publish_failure(*store, 1, "no disk"); }
  std::string failure() {
    for (int tries = 0; tries < 100; ++tries) {
      try {
        watch->check();
      } catch (const PeerFailure& failure) {
        return failure.what();
      }
      std::this_thread::sleep_for(milliseconds(50));
    }
    return "";
  }

  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int> disconnected = 0;
  std::atomic<bool> is_set_back = false;  // the clock, by an hour
  std::unique_ptr<Watchdog> watch;
  size_t group = 0;
};

// Work like NCCL's: the host does not wait for it.
class OnDevice : public c10d::Work {
 public:
  explicit OnDevice(std::function<bool()> is_completed) : is_completed_(std::move(is_completed)) {}
  bool isCompleted() override { return is_completed_(); }
  bool isSuccess() const override { return true; }
  bool wait(milliseconds /*timeout*/) override { return true; }

 private:
  std::function<bool()> is_completed_;
};

// A message that nobody sends: it ends when it is aborted.
class Letter : public c10d::Work {
 public:
  explicit Letter(Rank& rank) : rank_(rank) {}
  bool isCompleted() override { return false; }
  bool wait(milliseconds /*timeout*/) override {
    broken_off_.get_future().wait();
    return false;
  }
  void abort() override {
    rank_.need_the_lock();
    broken_off_.set_value();
  }

 private:
  Rank& rank_;
  std::promise<void> broken_off_;
};

TEST(Watchdog, AbortsAMessageWithoutBlockingTheOtherThreads) {
  Rank rank;
  const int64_t ticket = rank.begin("receive", /*message=*/true);
  rank.fail_elsewhere();
  try {
    rank.watch->wait(c10::make_intrusive<Letter>(rank), ticket, /*message=*/true, {0, 1});
    ADD_FAILURE() << "the message came";
  } catch (const PeerFailure& failure) {
    EXPECT_STREQ(failure.what(), "rank 1 failed: no disk");
  }
}

// A collective in which the backend waits until a time of day: it ends after `seconds`, or when connections break.
class Collective : public c10d::Work {
 public:
  Collective(Rank& rank, double seconds) : rank_(rank), seconds_(seconds) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return rank_.disconnected == 0; }
  bool wait(milliseconds /*timeout*/) override {
    for (double passed = 0; passed < seconds_ && rank_.disconnected == 0; passed += 0.05) {
      std::this_thread::sleep_for(milliseconds(50));
    }
    if (rank_.disconnected > 0) {
      throw std::runtime_error("Connection closed");
    }
    return true;
  }

 private:
  Rank& rank_;
  double seconds_;
};

std::string failure_of_a_wait(Rank& rank, const c10::intrusive_ptr<c10d::Work>& work, bool message) {
  const int64_t ticket = rank.begin(message ? "receive" : "all_reduce", message);
  std::thread sets_the_clock([&] {
    std::this_thread::sleep_for(milliseconds(200));
    rank.is_set_back = true;
  });
  std::string failure;
  try {
    rank.watch->wait(work, ticket, message, {0, 1});
  } catch (const PeerFailure& problem) {
    failure = problem.what();
  }
  sets_the_clock.join();
  return failure;
}

TEST(Watchdog, EndsACollectiveInTimeIfTheClockWasSetBack) {
  Rank rank(milliseconds(1000));
  EXPECT_THAT(
      failure_of_a_wait(rank, c10::make_intrusive<Collective>(rank, 3600), /*message=*/false),
      HasSubstr("all_reduce number 1 on axis tp (ranks 0, 1) was not finished within 1 s"));
}

// A collective of which the backend's own waits go on after connections are broken, as Gloo's do on the side that
// breaks them.
class Endless : public c10d::Work {
 public:
  bool isCompleted() override { return false; }
  bool wait(milliseconds /*timeout*/) override {
    std::this_thread::sleep_for(milliseconds(50));
    return false;
  }
};

TEST(Watchdog, EndsACollectiveThatBrokenConnectionsDoNotEnd) {
  Rank rank(milliseconds(1000));
  EXPECT_THAT(
      failure_of_a_wait(rank, c10::make_intrusive<Endless>(), /*message=*/false),
      HasSubstr("all_reduce number 1 on axis tp (ranks 0, 1) was not finished within 1 s"));
  EXPECT_GE(rank.disconnected, 1) << "nothing may wait for this rank";
}

TEST(Watchdog, EndsAMessageInTimeIfTheClockWasSetBack) {
  Rank rank(milliseconds(1000));
  EXPECT_THAT(
      failure_of_a_wait(rank, c10::make_intrusive<Letter>(rank), /*message=*/true),
      HasSubstr("receive on axis tp (ranks 0, 1) was not finished within 1 s"));
}

TEST(Watchdog, ACollectiveMayTakeLongerThanTheTimeLimitOfItsParts) {
  Rank rank(milliseconds(200));
  const int64_t ticket = rank.begin("all_reduce", /*message=*/false);
  EXPECT_NO_THROW(rank.watch->wait(c10::make_intrusive<Collective>(rank, 1.5), ticket, /*message=*/false, {0, 1}));
  EXPECT_EQ(rank.disconnected, 0);
}

TEST(Watchdog, DisconnectsWithoutBlockingTheOtherThreads) {
  Rank rank;
  rank.fail_elsewhere();
  EXPECT_EQ(rank.failure(), "rank 1 failed: no disk");
  EXPECT_EQ(rank.disconnected, 1);
}

TEST(Watchdog, ASilentRankEndsAllThatExpectItsAnswer) {
  Rank rank;
  const auto expect = [&] { rank.watch->expect_answers(*rank.store, "checkpoint: no answer from rank 1 within 9 s"); };
  {
    Watchdog other(rank.store, {.rank = 1, .world_size = 2, .patience = milliseconds(300)});
    EXPECT_NO_THROW(expect());  // late, but there
  }
  EXPECT_THROW(expect(), PeerFailure);
  EXPECT_EQ(rank.failure(), "checkpoint: no answer from rank 1 within 9 s: rank 1 is silent: dead or hung");
}

TEST(Watchdog, QueriesTheDeviceWithoutBlockingTheOtherThreads) {
  std::atomic<bool> done = false;
  std::atomic<int> asked = 0;
  Rank rank;
  const auto other_thread = [&rank] {  // begins a collective, which the device finishes a little later
    const auto soon = c10::make_intrusive<OnDevice>([asked = 0]() mutable { return asked++ > 0; });
    rank.watch->wait(soon, rank.begin("all_gather", /*message=*/false), /*message=*/false, {0, 1});
  };
  const auto work = c10::make_intrusive<OnDevice>([&] {
    std::async(std::launch::async, other_thread).get();
    ++asked;
    return done.load();
  });
  rank.watch->wait(work, rank.begin("all_reduce", /*message=*/false), /*message=*/false, {0, 1});
  while (asked < 3) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  done = true;
  for (int tries = 0; tries < 200 && work.use_count() > 1; ++tries) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(work.use_count(), 1U) << "the watch keeps work that is done";
}

// Work of a group on a device: the query of NCCL's work throws once the device has failed.
class Failing : public c10d::Backend {
 public:
  explicit Failing(std::function<bool()> is_completed) : c10d::Backend(0, 2), is_completed_(std::move(is_completed)) {}
  const std::string getBackendName() const override { return "failing"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<OnDevice>(is_completed_);
  }

 private:
  std::function<bool()> is_completed_;
};

TEST(Watchdog, NamesTheCollectiveThatADeviceFailedIn) {
  std::atomic<bool> fails = false;
  Rank rank;
  const auto backend = make_device_backend(
      {.host = make_thread_backend(
           std::make_shared<ThreadCommunicator>("tp", 2, std::make_shared<ThreadAbort>(), milliseconds(1000)), 0),
       .collectives =
           [&] {
             return c10::make_intrusive<Failing>([&]() -> bool {
               TORCH_CHECK(!fails, "CUDA error: an illegal memory access was encountered");
               return false;
             });
           },
       .on_device = [](const at::Tensor&) { return true; }});
  std::vector<at::Tensor> tensors{at::ones({1})};
  rank.watch->wait(backend->allreduce(tensors), rank.begin("all_reduce", false), /*message=*/false, {0, 1});
  fails = true;
  EXPECT_THAT(
      rank.failure(),
      HasSubstr(
          "all_reduce number 1 on axis tp (ranks 0, 1) failed on rank 0: CUDA error: an illegal memory access was "
          "encountered"));
  EXPECT_GE(rank.disconnected, 1) << "the host would wait for the device";
}

TEST(Watchdog, AnswersEachRequestForAReportWhileTheRankComputes) {
  Rank rank;  // rank 1 does not exist
  EXPECT_THAT(
      request_reports(*rank.store, 2, milliseconds(2000)),
      testing::ElementsAre("has not entered a collective yet", std::nullopt));
  rank.watch->log().waits(rank.begin("all_reduce", /*message=*/false));
  rank.watch->set_doing("step 12");
  EXPECT_THAT(
      request_reports(*rank.store, 1, milliseconds(10'000)),
      testing::ElementsAre("waits in all_reduce number 1 on axis tp for 0 s, in step 12"));
}

// Rank 1, of the same group, waits for rank 2 in another group, and rank 2 sleeps.
TEST(Watchdog, NamesASilentRankOfAnotherGroup) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto watch_of = [&](int64_t rank) {
    return std::make_unique<Watchdog>(
        store,
        Watchdog::Options{.rank = rank, .world_size = 3, .timeout = milliseconds(1), .patience = milliseconds(2000)});
  };
  const auto first = watch_of(0), second = watch_of(1);
  const int64_t ticket = first->log().begin(first->log().add_group("tp", "0,1"), "all_reduce", 4, /*counted=*/true);
  std::this_thread::sleep_for(milliseconds(5));
  try {
    first->explain(ticket, {0, 1}, "timed out");
    FAIL() << "expected an error";
  } catch (const PeerFailure& failure) {
    EXPECT_THAT(
        failure.what(),
        testing::AllOf(
            HasSubstr("rank 2 is silent: dead or hung; rank 1 did not enter"), HasSubstr("axis tp (ranks 0, 1)")));
  }
}

}  // namespace
}  // namespace lehr::mesh
