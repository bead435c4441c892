// Calls to a store that hangs, fails or recovers, and the watchdog meanwhile.
#include "lehr/mesh/bounded_store.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <atomic>
#include <thread>

#include "lehr/mesh/watchdog.h"

namespace lehr::mesh {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A server, as all connections to it see it.
struct Server {
  c10::intrusive_ptr<c10d::Store> values = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> hangs = false;
  std::atomic<bool> gone = false;
  std::atomic<int> connections = 0;
  std::atomic<int> broken = 0;  // connections with a number up to this one are broken
};

// A connection to a server.
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

TEST(BoundedStore, ReconnectsAfterAConnectionBroke) {
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
    EXPECT_THROW(store.check("key"), StoreTimeout);
    EXPECT_THROW(store.set("key", "value"), StoreTimeout);
    server->hangs = false;
    for (int tries = 0; tries < 50; ++tries) {
      try {
        EXPECT_FALSE(store.check("key"));  // nobody waits for the answer any more, so it was dropped
        break;
      } catch (const StoreTimeout&) {
        std::this_thread::sleep_for(milliseconds(20));
      }
    }
    store.set("key", "value");
    server->hangs = true;
    EXPECT_THROW(store.check("key"), StoreTimeout);
  }
  EXPECT_LT(seconds_since(start), 10);
  server->hangs = false;  // lets the thread end
}

// The failure that the watchdog reports within five seconds; "" for none.
std::string failure_of(const Watchdog& watch) {
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

TEST(Watchdog, ContinuesAfterItsStoreWasSilentOrBroken) {
  const auto server = std::make_shared<Server>();
  Watchdog watch(
      c10::make_intrusive<Connection>(server),
      {.rank = 0, .world_size = 2, .answer_time = milliseconds(50), .store_patience = milliseconds(3000)});
  server->hangs = true;
  std::this_thread::sleep_for(milliseconds(600));  // the watchdog polls several times
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

TEST(Watchdog, EndsItsRankWhenTheStoreIsGoneForGood) {
  const auto server = std::make_shared<Server>();
  Watchdog watch(
      c10::make_intrusive<Connection>(server),
      {.rank = 1, .world_size = 2, .answer_time = milliseconds(500), .store_patience = milliseconds(700)});
  server->gone = true;
  EXPECT_EQ(failure_of(watch), "the process that holds the ranks' store (rank 0 or the launcher) has ended");
}

}  // namespace
}  // namespace lehr::mesh
