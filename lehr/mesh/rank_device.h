// Selection of the GPU of a rank, and of one kind of device for all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lehr::mesh {

/// The index of a GPU among those that a process sees, or the reason why it has none.
struct GpuNumber {
  int64_t number = 0;
  std::string problem = "";
};

/// Selects the GPU of process `local_rank` of the `local_world_size` (0: unknown) that a launcher started on this
/// machine, where the process sees `visible` GPUs. It is GPU `local_rank` if there are enough for all processes, or the
/// only visible one if the launcher shows each process its own (srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES);
/// otherwise the problem names both numbers. All processes of a machine may see the same GPU: agree_on_device finds
/// that out.
GpuNumber gpu_of_rank(int64_t local_rank, int64_t local_world_size, int64_t visible);

/// The device that a rank may compute on.
struct DeviceOffer {
  std::string type = "cpu";     ///< "cuda": its GPU; "cpu".
  bool require_device = false;  ///< training.device names it; "auto" does not.
  std::string gpu = "";         ///< A name of its GPU that is unique among all machines.
  std::string why_cpu = "";     ///< The reason why a rank has no GPU.

  std::string to_text() const;
  static DeviceOffer from_text(const std::string& text);
};

/// The kind of device that all ranks compute on.
struct DeviceAgreement {
  std::string type = "cpu";
  std::string why_cpu = "";  ///< The reason, if "auto" asked for GPUs.
};

/// Decides by the offers of all ranks: GPUs if each has its own, else CPUs. Throws a usage error if ranks insist on
/// different devices, or on the same GPU.
DeviceAgreement agree_on_device(const std::vector<DeviceOffer>& offers);

}  // namespace lehr::mesh
