// The accelerator memory of this process.
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

}  // namespace lehr::metric
