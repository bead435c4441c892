// Counts the bytes of live tensors: on the CPU what was allocated, on meta what would have been.
#pragma once

#include <cstdint>
#include <memory>

#include "lehr/base/torch.h"

namespace lehr {

/// Counts what its thread allocates for tensors on one kind of device while it lives, and what of that is freed: on
/// meta by any thread, on the CPU by threads that have a meter. Views share their tensor's memory and count once.
/// Meters nest; the innermost of a device counts. Threads that have none pay nothing.
class MemoryMeter {
 public:
  /// `device` is at::kMeta or at::kCPU; throws a usage error otherwise.
  explicit MemoryMeter(at::DeviceType device);
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  /// Bytes now, and at most since the beginning or the last reset_peak().
  int64_t now() const;
  int64_t peak() const;
  void reset_peak();

  struct Count;

 private:
  struct Scope;
  std::shared_ptr<Count> count_;
  std::unique_ptr<Scope> scope_;
};

/// While one lives, meters of this thread do not count what it allocates: for tensors that only say a shape, in a run
/// on meta, and for those that no rank owns.
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
