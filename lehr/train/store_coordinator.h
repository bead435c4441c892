// Agreement among ranks through the key-value store of their rendezvous.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "lehr/base/torch.h"
#include "lehr/mesh/transport.h"
#include "lehr/state/coordinator.h"

namespace lehr::mesh {
class DistributedContext;
}

namespace lehr::train {

/// A coordinator over Transport::store(). It polls with short calls and never blocks inside the store: a store's client
/// serves one call at a time, so a blocked thread would stop every other thread of this rank.
class StoreCoordinator : public state::Coordinator {
 public:
  /// All ranks use the same name, which must be unique in this store, and construct the coordinators of a name one
  /// after the other in the same order. `patience` is the maximum wait for the slowest rank in one call. A rank that is
  /// stopped or hangs is found earlier: whenever the time limit of a collective has passed, all ranks are asked whether
  /// they are there.
  StoreCoordinator(
      mesh::Transport& transport, std::string name, std::chrono::milliseconds patience = std::chrono::minutes(30));
  ~StoreCoordinator() override;

  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  std::string decide(const std::string& key, const std::string& mine, const Decision& decision) override;
  void hurry(std::chrono::milliseconds patience) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  std::string get(const std::string& key, const std::string& what, Clock::time_point start);
  void set(const std::string& key, const std::string& text);

  mesh::Transport& transport_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::string name_;
  std::string prefix_;  // of keys, because those of an earlier coordinator of this name may still exist
  int64_t rank_;
  int64_t world_size_;
  std::chrono::milliseconds patience_;
  std::atomic<Clock::rep> latest_;        // deadline of all calls
  std::mutex mutex_;                      // guards calls_
  std::map<std::string, int64_t> calls_;  // by key
};

/// Returns the coordinator of the ranks of `mesh`, which is null on one device.
std::shared_ptr<state::Coordinator> make_coordinator(mesh::DistributedContext* mesh, const std::string& name);

}  // namespace lehr::train
