// A meter of the bytes of live tensors: allocated bytes on the CPU, hypothetical bytes on meta.
#pragma once

#include <cstdint>
#include <memory>

#include "lehr/base/torch.h"

namespace lehr {

/// Counts the tensor bytes that its thread allocates on one kind of device during the meter's lifetime, and their
/// release: on meta by any thread, on the CPU by threads that have a meter. Views share their tensor's memory and count
/// once. Meters nest; the innermost meter of a device counts. Threads without a meter have no overhead.
class MemoryMeter {
 public:
  /// `device` must be at::kMeta or at::kCPU; otherwise throws a usage error.
  explicit MemoryMeter(at::DeviceType device);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  /// Current bytes, and their maximum since construction or the last reset_peak().
  int64_t now() const;
  int64_t peak() const;
  void reset_peak();

  struct Count;

 private:
  struct Scope;
  std::shared_ptr<Count> count_;
  std::unique_ptr<Scope> scope_;
};

/// Scope in which the meters of this thread do not count allocations: for tensors that only carry a shape in a run on
/// meta, and for tensors that belong to no rank.
class NotCounted {
 public:
  NotCounted();
  ~NotCounted();
  NotCounted(const NotCounted&) = delete;
  NotCounted& operator=(const NotCounted&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

}  // namespace lehr
