#include "lehr/mesh/gloo_transport.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "lehr/base/error.h"
#include "lehr/mesh/agreed_start.h"
#include "lehr/mesh/backend_variables.h"
#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/gloo_backend.h"
#include "lehr/mesh/wait_until.h"

namespace lehr::mesh {

namespace {
using std::chrono::milliseconds;

using GlooBackends = std::vector<GlooBackend>;

// Gloo's backend waits for pending work when it is destroyed. After a failure that lasts until the collective's time
// limit: closing a connection on this rank does not wake those who wait for data from it. The process ends soon, and
// the system closes the connections that are left.
void never_destroy(GlooBackends backends) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<GlooBackends>();
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(backends));
}

class GlooTransport : public Transport {
 public:
  GlooTransport(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      int64_t world_size,
      bool local,
      bool keeps_store,
      const GlooOptions& options)
      : store_(std::move(store)),
        rank_(rank),
        world_size_(world_size),
        local_(local),
        keeps_store_(keeps_store),
        options_(options) {
    std::vector<int64_t> all;
    for (int64_t other = 0; other < world_size_; ++other) {
      all.push_back(other);
    }
    meet("the start", "start", all);
    watch_ = std::make_unique<Watchdog>(
        store_,  // the watchdog clones it: blocking calls over this connection must not delay it
        Watchdog::Options{
            .rank = rank_,
            .world_size = world_size_,
            .timeout = options_.timeout,
            .patience = options_.patience,
            .disconnect = [this] { disconnect(); }});
  }

  ~GlooTransport() override {
    if (!watch_->failed() && std::uncaught_exceptions() == 0) {
      watch_->shut_down(std::chrono::seconds(keeps_store_ ? 5 : 0));
    } else if (keeps_store_) {
      watch_->wait_until_peers_know(std::chrono::seconds(2));
    }
    watch_.reset();
    if (disconnected_ || std::uncaught_exceptions() > 0) {
      disconnect();
      never_destroy(std::move(backends_));
    }
  }

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  std::string name() const override { return "gloo"; }
  bool copies_reductions() const override { return true; }  // the chunks of all ranks (gloo_backend.cpp)
  c10::intrusive_ptr<c10d::Store> store() override { return store_; }
  Watchdog* watch() override { return watch_.get(); }
  void check() override { watch_->check(); }
  void abort(const std::string& message) noexcept override { watch_->fail(message); }

  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& ranks) override {
    watch_->check();
    std::string key = fmt::format("group/{}:{}", group, fmt::join(ranks, ","));
    key += fmt::format("#{}", ++connected_[key]);  // A second mesh over the same ranks has groups of its own.
    meet("axis " + group, key, ranks);
    const int64_t index = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    try {
      GlooBackend backend = connect_gloo(
          c10::make_intrusive<c10d::PrefixStore>(key, store_),
          {.rank = static_cast<int>(index),
           .size = static_cast<int>(ranks.size()),
           .local = local_,
           .init_timeout = options_.init_timeout,
           .timeout = options_.timeout});
      const std::lock_guard lock(mutex_);
      backends_.push_back(backend);
      return backend.collectives;
    } catch (const std::exception& problem) {
      watch_->check();
      fail_runtime("axis {} (ranks {}): cannot connect: {}", group, fmt::join(ranks, ", "), problem.what());
    }
  }

 private:
  // Returns when all ranks have reached this point; the error names those that have not.
  void meet(const std::string& what, const std::string& key, const std::vector<int64_t>& ranks) {
    const auto key_of = [&](int64_t rank) { return fmt::format("{}/here/{}", key, rank); };
    store_->set(key_of(rank_), std::string("1"));
    const auto deadline = std::chrono::steady_clock::now() + options_.init_timeout;
    std::vector<std::string> keys;
    std::transform(ranks.begin(), ranks.end(), std::back_inserter(keys), key_of);
    const bool all_here = wait_until(deadline, [&] {
      if (store_->check(keys)) {
        return true;
      }
      if (watch_) {
        watch_->check();
      }
      return false;
    });
    if (all_here) {
      return;
    }
    std::vector<int64_t> missing;
    std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(missing), [&](int64_t rank) {
      return !store_->check({key_of(rank)});
    });
    throw Error(ErrorKind::runtime, absent_ranks_text(rank_, missing, world_size_, what, options_.init_timeout));
  }

  void disconnect() noexcept {
    {
      const std::lock_guard lock(mutex_);
      disconnected_ = true;
      for (const auto& backend : backends_) {
        backend.disconnect();
      }
    }
    if (options_.disconnect) {
      options_.disconnect();  // may wait for a device, and so for other threads
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_, world_size_;
  bool local_, keeps_store_;
  GlooOptions options_;
  std::map<std::string, int64_t> connected_;
  std::mutex mutex_;
  GlooBackends backends_;
  bool disconnected_ = false;
  std::unique_ptr<Watchdog> watch_;
};

// c10d writes every connection attempt and every broken connection to standard error, with stack traces. The errors
// that are thrown contain the relevant part. Once per process: ranks may be threads, and the level is a plain int.
void silence_c10d() {
  static const bool done = [] {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
      FLAGS_caffe2_log_level = 3;
    }
    return true;
  }();
  static_cast<void>(done);
}

c10::intrusive_ptr<c10d::Store> connect_store(
    const RankEnvironment& environment, bool keeps_store, const GlooOptions& options) {
  const std::string place = fmt::format("{}:{}", environment.master_address, environment.master_port);
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(environment.master_port);
  tcp.isServer = keeps_store;
  tcp.waitWorkers = false;
  tcp.timeout = options.init_timeout;
  try {
    return c10::make_intrusive<c10d::PrefixStore>(
        "lehr", c10::make_intrusive<c10d::TCPStore>(environment.master_address, tcp));
  } catch (const std::exception& problem) {
    const std::string text = problem.what();
    if (keeps_store) {
      fail_runtime(
          "rank 0: cannot keep the ranks' store at {}: another program may use the port (change MASTER_PORT), or "
          "the address may not be this machine's (MASTER_ADDR): {}",
          place,
          text.substr(0, text.find('\n')));
    }
    fail_runtime(
        "rank {}: nobody answers at {} within {}: rank 0 keeps the ranks' store there; did it start, and can this "
        "machine reach it?",
        environment.rank,
        place,
        seconds_text(options.init_timeout));
  }
}

// Without this, a rank that ends while this one writes to it would end this process, too, without a message.
void ignore_broken_connections() {
  std::signal(SIGPIPE, SIG_IGN);
}
}  // namespace

std::unique_ptr<Transport> gloo_transport(const RankEnvironment& environment, const GlooOptions& options) {
  silence_c10d();
  ignore_broken_connections();
  const bool keeps_store = environment.rank == 0 && !environment.launcher_keeps_store;
  const std::string& address = environment.master_address;
  const bool local = address == "127.0.0.1" || address == "localhost" || address == "::1";
  c10::intrusive_ptr<c10d::Store> store = connect_store(environment, keeps_store, options);
  if (environment.has_earlier_keys) {
    const std::string prefix = agree_on_start(*store, environment.rank, environment.world_size, options.init_timeout);
    store = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  }
  return gloo_transport(std::move(store), environment.rank, environment.world_size, local, keeps_store, options);
}

std::unique_ptr<Transport> gloo_transport(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    int64_t world_size,
    bool local,
    bool keeps_store,
    const GlooOptions& options) {
  ignore_broken_connections();
  set_backend_variables();
  return std::make_unique<GlooTransport>(std::move(store), rank, world_size, local, keeps_store, options);
}

}  // namespace lehr::mesh
