// The accelerator memory of this process, now and at its peak.
#pragma once

#include <cstdint>
#include <optional>

#include "lehr/base/torch.h"

namespace lehr::metric {

/// Bytes, by LibTorch's allocator. Memory that the driver and libraries allocate themselves is not included.
struct DeviceMemory {
  int64_t allocated = 0;       ///< Memory of tensors.
  int64_t peak_allocated = 0;  ///< Its maximum since the process began.
  int64_t reserved = 0;        ///< Memory that the allocator holds, for tensors and for reuse.
  int64_t peak_reserved = 0;   ///< Its maximum.
};

/// Returns nothing for a CPU. The host does not wait for the device.
std::optional<DeviceMemory> device_memory(at::Device device);

/// The most memory that a process, or any of several, has taken so far, in bytes.
struct PeakMemory {
  int64_t resident = 0;          ///< Of the host.
  int64_t device_allocated = 0;  ///< Of tensors on an accelerator; 0 without one.
  int64_t device_reserved = 0;   ///< Of an accelerator's allocator.
};
/// Returns that of this process.
PeakMemory peak_memory(at::Device device);
/// Returns the larger figure of each kind.
PeakMemory highest(const PeakMemory& a, const PeakMemory& b);

}  // namespace lehr::metric
