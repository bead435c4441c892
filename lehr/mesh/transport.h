// The connection between ranks: processes (Gloo, NCCL), threads of one process, or none at all (planning).
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

class Watchdog;

/// The connection of one rank to all others.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  /// "gloo", "nccl", "threads", "fake", "single"
  virtual std::string name() const = 0;
  /// The device of tensors that ranks exchange, in addition to host memory: this rank's GPU.
  virtual at::Device device() const { return at::kCPU; }

  /// Returns a backend for the collectives of `ranks` (ascending global ranks, including this one). All of them call it
  /// with the same name, which must be unique. Throws a runtime error if not all arrive in time.
  virtual c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& ranks) = 0;

  /// True if two ranks are connected by the first message from one to the other, which blocks each host until the other
  /// has called it, too: then the order of first messages must be the same on all ranks
  /// (DistributedContext::connect_messages).
  virtual bool connects_by_messages() const { return false; }
  /// True if a reduce-scatter of device() holds as much memory again as its input until it is waited for: then many in
  /// flight hold twice the memory of all their inputs.
  virtual bool copies_reductions() const { return false; }
  /// Communicators that this rank has on its device, each of which takes memory there.
  virtual int64_t num_communicators() const { return 0; }

  /// Keys and values that all ranks share: for data other than tensors.
  virtual c10::intrusive_ptr<c10d::Store> store() = 0;

  /// Makes every pending and later collective fail on all ranks, with this message, as far as the transport can. Any
  /// thread; never throws.
  virtual void abort(const std::string& /*message*/) noexcept {}

  /// Throws if another rank has failed: for loops that wait outside of collectives. Any thread.
  virtual void check() {}

  /// Returns 0, 1, 2, ... in the order of calls: the same on all ranks at the same point of the program, for names of
  /// keys.
  int64_t next_number() { return next_number_++; }

  /// Records the collectives of this rank and explains those that fail; null if nothing can hang silently.
  virtual Watchdog* watch() { return nullptr; }

 private:
  int64_t next_number_ = 0;
};

}  // namespace lehr::mesh
