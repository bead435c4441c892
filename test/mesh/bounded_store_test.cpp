// Calls to a store that hangs, breaks or comes back; and the watch over collectives meanwhile.
#include "lehr/mesh/bounded_store.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <thread>

#include "lehr/mesh/rank_watch.h"

namespace lehr::mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// What all connections to one server know of it.
struct Server {
  c10::intrusive_ptr<c10d::Store> values = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> hangs = false;
  std::atomic<bool> gone = false;
  std::atomic<int> connections = 0;
  std::atomic<int> broken = 0;  // connections up to this number
};

// A connection to it.
class Connection : public c10d::PrefixStore {
 public:
  explicit Connection(std::shared_ptr<Server> server)
      : PrefixStore("", server->values), server_(std::move(server)), number_(++server_->connections) {}
  c10::intrusive_ptr<c10d::Store> clone() override {
    if (server_->gone) {
      throw std::runtime_error("connection refused");
    }
    return c10::make_intrusive<Connection>(server_);
  }
  void setTimeout(const std::chrono::milliseconds&) override {}
  bool check(const std::vector<std::string>& keys) override {
    while (server_->hangs) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    if (server_->gone || number_ <= server_->broken) {
      throw std::runtime_error("connection reset by peer");
    }
    return PrefixStore::check(keys);
  }

 private:
  std::shared_ptr<Server> server_;
  int number_;
};

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

TEST(BoundedStore, ConnectsAnewWhereAConnectionBroke) {
  const auto server = std::make_shared<Server>();
  BoundedStore store(c10::make_intrusive<Connection>(server), milliseconds(2000));
  store.set("key", "value");
  EXPECT_TRUE(store.check("key"));
  server->broken = server->connections.load();
  EXPECT_TRUE(store.check("key"));
  EXPECT_EQ(store.get("key"), "value");
  EXPECT_EQ(store.add("count", 2), 2);
  server->gone = true;
  EXPECT_THROW(store.check("key"), std::runtime_error);
  server->gone = false;
  EXPECT_TRUE(store.check("key"));
}

TEST(BoundedStore, DoesNotWaitForAServerThatHangs) {
  const auto server = std::make_shared<Server>();
  const auto start = steady_clock::now();
  {
    BoundedStore store(c10::make_intrusive<Connection>(server), milliseconds(100));
    server->hangs = true;
    EXPECT_THROW(store.check("key"), StoreSilence);
    EXPECT_THROW(store.set("key", "value"), StoreSilence);
    server->hangs = false;
    for (int tries = 0; tries < 50; ++tries) {
      try {
        EXPECT_FALSE(store.check("key"));  // nobody waits for the value any more, so it was not set
        break;
      } catch (const StoreSilence&) {
        std::this_thread::sleep_for(milliseconds(20));
      }
    }
    store.set("key", "value");
    server->hangs = true;
    EXPECT_THROW(store.check("key"), StoreSilence);
  }
  EXPECT_LT(seconds_since(start), 10);
  server->hangs = false;  // lets the thread go
}

// Whether the watch knows of a failure within five seconds.
std::string failure_of(const RankWatch& watch) {
  for (int tries = 0; tries < 100; ++tries) {
    try {
      watch.check();
    } catch (const PeerFailure& failure) {
      return failure.what();
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  return "";
}

TEST(RankWatch, GoesOnAfterItsStoreWasSilentOrBroken) {
  const auto server = std::make_shared<Server>();
  RankWatch watch(
      c10::make_intrusive<Connection>(server),
      {.rank = 0, .world_size = 2, .answer_time = milliseconds(50), .store_patience = milliseconds(3000)});
  server->hangs = true;
  std::this_thread::sleep_for(milliseconds(600));  // some looks of the watch
  server->hangs = false;
  server->gone = true;
  std::this_thread::sleep_for(milliseconds(600));
  server->gone = false;
  server->broken = server->connections.load();
  EXPECT_NO_THROW(watch.check());
  Connection other(server);
  publish_failure(other, 1, "the disk is full");
  EXPECT_EQ(failure_of(watch), "rank 1 failed: the disk is full");
}

TEST(RankWatch, EndsItsRankWhenTheStoreIsGoneForGood) {
  const auto server = std::make_shared<Server>();
  RankWatch watch(
      c10::make_intrusive<Connection>(server),
      {.rank = 1, .world_size = 2, .answer_time = milliseconds(500), .store_patience = milliseconds(700)});
  server->gone = true;
  EXPECT_EQ(failure_of(watch), "what keeps the ranks' store, rank 0 or the launcher, is gone");
}

}  // namespace
}  // namespace lehr::mesh
