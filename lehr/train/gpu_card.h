// The GPU of a run, and the figures of its data sheet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lehr/base/torch.h"
#include "lehr/train/machine_limits.h"

namespace lehr::train {

/// A GPU, as the driver describes it. Figures that the driver does not report are 0, texts empty.
struct GpuCard {
  std::string name = {};         ///< "NVIDIA H200"
  int64_t memory_bytes = 0;      ///< Total memory.
  int64_t major = 0;             ///< Compute capability, 9.0 for an H200: 9.
  int64_t minor = 0;             ///< And 0.
  int64_t multiprocessors = 0;   ///< Streaming multiprocessors.
  int64_t memory_clock_khz = 0;  ///< Memory clock; memory moves two bits per clock and wire.
  int64_t memory_bus_bits = 0;   ///< Width of the memory bus.
  std::string driver = {};       ///< "580.159.03"; if the version is not reported, "for CUDA 13.0".

  /// Returns "NVIDIA H200, 139.8 GiB, compute capability 9.0, 132 multiprocessors, driver 580.159.03".
  std::string describe() const;
};

/// Queries the driver (libcuda.so.1, libnvidia-ml.so.1), which a run on a GPU has loaded. Returns nothing if `device`
/// is not a GPU or the driver does not answer.
std::optional<GpuCard> find_card(at::Device device);

/// Returns the reason why Lehr does not compute on the card, or an empty text. FlashAttention and Lehr's kernels need
/// compute capability 8.0 (A100) or more.
std::string why_unsupported(const GpuCard& card);

/// Returns the peaks of matmuls in this dtype and in float8 without sparsity, and the memory bandwidth, from the data
/// sheets of A100, H100 (SXM, PCIe, NVL), H200 (SXM, NVL) and B200. For other cards `flops` is 0, because it is
/// unknown, and the bandwidth is computed from clock and bus, or 0. float32 means float32, not TF32, which Lehr does
/// not use.
MachineLimits card_limits(const GpuCard& card, at::ScalarType dtype);

/// The limits that a profile is compared with.
struct DeviceLimits {
  MachineLimits limits = {};
  std::string source = {};  ///< "NVIDIA H200 (data sheet)"; empty if everything was measured on the CPU.
};

/// Returns the limits of a device. For a GPU they are those of its data sheet; figures that it does not have are
/// measured in about `seconds` each. For the CPU: measure_limits.
DeviceLimits limits_of(at::Device device, at::ScalarType dtype, double seconds);

}  // namespace lehr::train
