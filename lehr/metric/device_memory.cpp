#include "lehr/metric/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "lehr/metric/throughput.h"

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

PeakMemory peak_memory(at::Device device) {
  const ProcessMemory process = process_memory();
  PeakMemory peak{.resident = std::max(process.resident, process.peak_resident)};
  if (const auto of_device = device_memory(device)) {
    peak.device_allocated = of_device->peak_allocated;
    peak.device_reserved = of_device->peak_reserved;
  }
  return peak;
}

PeakMemory highest(const PeakMemory& a, const PeakMemory& b) {
  return {
      .resident = std::max(a.resident, b.resident),
      .device_allocated = std::max(a.device_allocated, b.device_allocated),
      .device_reserved = std::max(a.device_reserved, b.device_reserved)};
}

}  // namespace lehr::metric
