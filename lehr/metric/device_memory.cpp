#include "lehr/metric/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace lehr::metric {

std::optional<DeviceMemory> device_memory(at::Device device) {
  if (device.is_cpu()) {
    return std::nullopt;
  }
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.has_index() ? device.index() : 0);
  return DeviceMemory{
      .allocated = stats.allocated_bytes[kAll].current,
      .peak_allocated = stats.allocated_bytes[kAll].peak,
      .reserved = stats.reserved_bytes[kAll].current,
      .peak_reserved = stats.reserved_bytes[kAll].peak};
}

}  // namespace lehr::metric
