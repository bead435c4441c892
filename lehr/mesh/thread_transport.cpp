#include "lehr/mesh/thread_transport.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "lehr/base/error.h"
#include "lehr/mesh/thread_backend.h"

namespace lehr::mesh {

class ThreadHub {
 public:
  ThreadHub(int64_t ranks, std::chrono::milliseconds timeout)
      : world_size(ranks),
        store(c10::make_intrusive<c10d::HashStore>()),
        timeout_(timeout),
        abort_(std::make_shared<ThreadAbort>()) {}

  std::shared_ptr<ThreadCommunicator> communicator(const std::string& name, const std::vector<int64_t>& ranks) {
    const std::lock_guard lock(mutex_);
    auto& communicator = communicators_[fmt::format("{}:{}", name, fmt::join(ranks, ","))];
    if (!communicator) {
      communicator = std::make_shared<ThreadCommunicator>(name, static_cast<int64_t>(ranks.size()), abort_, timeout_);
    }
    return communicator;
  }

  void abort(const std::string& message) {
    {
      const std::lock_guard lock(abort_->mutex);
      if (abort_->aborted) {
        return;
      }
      abort_->aborted = true;
      abort_->message = message;
    }
    const std::lock_guard lock(mutex_);
    for (auto& [name, communicator] : communicators_) {
      communicator->wake();
    }
  }

  void check() const {
    const std::lock_guard lock(abort_->mutex);
    if (abort_->aborted) {
      fail_runtime("another rank failed: {}", abort_->message);
    }
  }

  const int64_t world_size;
  const c10::intrusive_ptr<c10d::Store> store;

 private:
  std::chrono::milliseconds timeout_;
  std::shared_ptr<ThreadAbort> abort_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<ThreadCommunicator>> communicators_;
};

std::shared_ptr<ThreadHub> make_thread_hub(int64_t world_size, std::chrono::milliseconds timeout) {
  return std::make_shared<ThreadHub>(world_size, timeout);
}

namespace {
class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, int64_t rank) : hub_(std::move(hub)), rank_(rank) {}
  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return hub_->world_size; }
  std::string name() const override { return "threads"; }
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& ranks) override {
    const int64_t index = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return make_thread_backend(hub_->communicator(group, ranks), index);
  }
  c10::intrusive_ptr<c10d::Store> store() override { return hub_->store; }
  void abort(const std::string& message) noexcept override { hub_->abort(message); }
  void check() override { hub_->check(); }

 private:
  std::shared_ptr<ThreadHub> hub_;
  int64_t rank_;
};
}  // namespace

std::unique_ptr<Transport> thread_transport(std::shared_ptr<ThreadHub> hub, int64_t rank) {
  return std::make_unique<ThreadTransport>(std::move(hub), rank);
}

void run_ranks(
    int64_t world_size, const std::function<void(Transport& transport)>& body, std::chrono::milliseconds timeout) {
  require(world_size >= 1, "run_ranks: expected 1 rank or more, found {}", world_size);
  const auto hub = make_thread_hub(world_size, timeout);
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto transport = thread_transport(hub, rank);
      try {
        body(*transport);
      } catch (const std::exception& problem) {
        {
          const std::lock_guard lock(mutex);
          if (!first) {
            first = std::current_exception();
          }
        }
        hub->abort(fmt::format("rank {}: {}", rank, problem.what()));
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace lehr::mesh
