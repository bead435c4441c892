// What carries data between ranks: processes (Gloo, NCCL), threads of one process, or nobody at all (planning).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lehr/base/torch.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace lehr::mesh {

class RankWatch;

/// The connection of one rank to all others.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// "gloo", "nccl", "threads", "fake", "single"
  virtual std::string name() const = 0;
  /// Where tensors that ranks exchange may be beside host memory: this rank's GPU.
  virtual at::Device device() const { return at::kCPU; }

  /// A backend for the collectives of `ranks` (ascending global ranks, this one among them). All of them call it with
  /// the same name, which no other group has. Throws a runtime error if not all come in time.
  virtual c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& ranks) = 0;

  /// Keys and values that all ranks share: for what is no tensor.
  virtual c10::intrusive_ptr<c10d::Store> store() = 0;

  /// Lets every collective that is under way or comes later fail on all ranks, with this message, as far as the
  /// transport can. Any thread; never throws.
  virtual void abort(const std::string& /*message*/) noexcept {}

  /// Throws if another rank has failed: for loops that wait outside of collectives. Any thread.
  virtual void check() {}

  /// 0, 1, 2, ... in the order of calls: the same on all ranks at the same place of the program, for names of keys.
  int64_t next_number() { return next_number_++; }

  /// What records the collectives of this rank and explains those that fail; null where nothing can hang silently.
  virtual RankWatch* watch() { return nullptr; }

 private:
  int64_t next_number_ = 0;
};

}  // namespace lehr::mesh
