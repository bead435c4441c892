// What a machine can do: its devices' arithmetic and memory, and the links between them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lehr/base/fields.h"
#include "lehr/base/torch.h"

namespace lehr::plan {

/// One device a rank, `ranks_per_node` of them behind fast links, nodes behind slower ones. Bandwidths are those of one
/// device in one direction. A config of its own: a TOML file, a preset, or keys on a command line.
struct Machine {
  std::string name = "h100";
  double tflops_bfloat16 = 989;
  double tflops_float32 = 67;
  double tflops_float64 = 34;
  double achieved_fraction = 0.7;
  double achieved_expert_fraction = 0.35;
  double achieved_attention_fraction = 0.4;
  double memory_gb = 80;
  double reserved_gb = 4;
  double memory_gb_per_second = 3350;
  double achieved_memory_fraction = 0.8;
  int64_t ranks_per_node = 8;
  double node_gb_per_second = 450;
  double node_latency_us = 5;
  double network_gb_per_second = 50;
  double network_latency_us = 15;
  double achieved_link_fraction = 0.7;
  double layer_overhead_us = 50;
  double communication_overlap = 0.8;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;

  /// Floating-point operations a second at the peak in this type, of which a model's use (MFU) is a share.
  double peak_flops(at::ScalarType dtype) const;
  /// Bytes that a run may take of a device.
  double usable_bytes() const { return (memory_gb - reserved_gb) * 1e9; }
  /// Bytes a second that operators bound by memory reach.
  double memory_bandwidth() const { return memory_gb_per_second * achieved_memory_fraction * 1e9; }
};

/// The machines that are known by name, with the vendors' figures:
///
/// - h100: H100 SXM, 80 GB HBM3 at 3.35 TB/s, 989 TFLOP/s dense bfloat16, NVLink 450 GB/s each way, a 400 Gb/s NIC a
///   device (NVIDIA H100 Tensor Core GPU data sheet; DGX H100 data sheet). Vendors quote bfloat16 with sparsity, 1,979.
/// - h200: the same with 141 GB HBM3e at 4.8 TB/s (NVIDIA H200 Tensor Core GPU data sheet).
/// - a100: A100 SXM, 80 GB HBM2e at 2.04 TB/s, 312 TFLOP/s, NVLink 300 GB/s each way, a 200 Gb/s NIC a device (NVIDIA
///   A100 Tensor Core GPU data sheet; DGX A100 data sheet).
/// - cpu: a small machine of two cores whose ranks are processes; only a start, which calibrate_cpu replaces.
///
/// Their fractions are no vendor's, but what published measurements of good kernels and links reach: 0.7 of the peak in
/// large matrix products, 0.35 in those of experts, 0.4 in attention, 0.7 of a link, 0.8 of memory. docs/plan.md says
/// how far to trust them.
std::span<const Machine> machine_presets();

/// A preset by its name, or the TOML file of that path, whose keys are those of Machine. Keys that a file leaves out
/// are those of the preset that its `name` says, or of h100. Throws usage errors: an unknown name with the nearest,
/// what is wrong in a file with its place. `overrides` are dotted keys of a command line without "machine.", and win.
Machine load_machine(
    const std::string& name_or_file, const std::vector<std::pair<std::string, std::string>>& overrides = {});

/// `machine` with what this computer's CPU reaches, measured in about two seconds: matrix products in float32, bfloat16
/// and float64, memory bandwidth of a copy, and its memory. Figures are of this process's threads, and fractions are 1
/// for products and memory, as they were reached; those of experts and attention are Lehr's kernels' beside them. Links
/// are left as they are.
Machine calibrate_cpu(Machine machine);

}  // namespace lehr::plan
