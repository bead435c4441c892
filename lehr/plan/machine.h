// Description of a machine: compute and memory of its devices, and the links between them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lehr/base/torch.h"
#include "lehr/config/config.h"
#include "lehr/metric/throughput.h"

namespace lehr::plan {

/// A machine with one device per rank, `ranks_per_node` of them behind fast links, and slower links between nodes.
/// Bandwidths are those of one device in one direction. It is a config of its own: a TOML file, a preset, or keys on a
/// command line. The defaults are the figures of the preset h100, which also sets tflops_float8 and device_mtbf_hours.
struct Machine {
  std::string name = "h100";
  double tflops_bfloat16 = 989;
  double tflops_float32 = 67;
  double tflops_float64 = 34;
  double achieved_fraction = 0.74;
  double achieved_expert_fraction = 0.6;
  double expert_half_tokens = 256;
  double achieved_attention_fraction = 0.4;
  std::optional<double> tflops_float8 = {};
  double achieved_float8_fraction = 0.55;
  double sustained_clock_fraction = 1;
  std::optional<double> achieved_fraction_bfloat16 = {};
  std::optional<double> achieved_attention_fraction_bfloat16 = {};
  double memory_gb = 85;
  double reserved_gb = 4;
  double memory_gb_per_second = 3350;
  double achieved_memory_fraction = 0.8;
  int64_t ranks_per_node = 8;
  bool node_direct_links = false;
  double node_gb_per_second = 450;
  double node_latency_us = 5;
  double network_gb_per_second = 50;
  double network_latency_us = 15;
  double achieved_link_fraction = 0.7;
  double layer_overhead_us = 50;
  double expert_layer_overhead_us = 0;
  double communication_overlap = 0.8;
  double rank_deviation = 0;
  std::optional<double> device_mtbf_hours = {};
  double restart_seconds = 600;
  double host_gb_per_second = 20;
  double storage_gb_per_second = 0.12;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;

  /// Returns the peak FLOP/s in this dtype; MFU is a fraction of it.
  double peak_flops(at::ScalarType dtype) const;
  /// @name Fractions of that peak
  /// @{
  double matmul_fraction(at::ScalarType dtype) const;
  double expert_fraction(
      at::ScalarType dtype, double tokens = 0) const;  ///< At `tokens` tokens per expert; 0: enough of them.
  double attention_fraction(at::ScalarType dtype) const;
  /// @}
  /// Returns the FLOP/s of float8 matmuls; without tflops_float8, those of `dtype`.
  double float8_flops(at::ScalarType dtype) const;
  /// Returns the expected delay of the slowest of `ranks` ranks, as a fraction of the mean time of computation:
  /// rank_deviation * sqrt(2 ln ranks), the expected maximum of that many normal deviations.
  double slowest_of(int64_t ranks) const;
  /// Returns the bytes of a device that a run may use.
  double usable_bytes() const { return (memory_gb - reserved_gb) * 1e9; }
  /// Returns the bytes per second that memory-bound operators reach.
  double memory_bandwidth() const { return memory_gb_per_second * achieved_memory_fraction * 1e9; }
};

/// Returns a preset by its name, or the machine of a TOML file whose keys are those of Machine. Keys missing in a file
/// have the values of the preset in its `name`, or the defaults of Machine. Throws a usage error for an unknown name,
/// with the nearest, and for errors in a file, with their position. `overrides` are dotted keys of a command line
/// without "machine." and take precedence.
///
/// The presets have the vendors' figures:
///
/// - h100: H100 SXM, 80 GB HBM3 at 3.35 TB/s, 989 TFLOP/s dense bfloat16, NVLink 450 GB/s each way, one 400 Gb/s NIC
///   per device (NVIDIA H100 Tensor Core GPU data sheet; DGX H100 data sheet). Vendors quote bfloat16 with sparsity,
///   1,979.
/// - h200: the same with 141 GB HBM3e at 4.8 TB/s (NVIDIA H200 Tensor Core GPU data sheet).
/// - b200: B200 SXM, 180 GB HBM3e at 7.7 TB/s, 2,250 TFLOP/s, NVLink 900 GB/s, one 400 Gb/s NIC per device (NVIDIA DGX
///   B200 data sheet: 36 PFLOP/s of dense float8 in a node of 8).
/// - a100: A100 SXM, 80 GB HBM2e at 2.04 TB/s, 312 TFLOP/s, NVLink 300 GB/s each way, one 200 Gb/s NIC per device
///   (NVIDIA A100 Tensor Core GPU data sheet; DGX A100 data sheet).
/// - cpu: a small machine of two cores whose ranks are processes; a starting point that calibrate_cpu replaces.
///
/// These memory sizes are nominal. `memory_gb` is the size that the CUDA driver reports, in 10^9 bytes: a card of "80
/// GB" has 79.2 GiB, 85.0 x 10^9 bytes; H200 has 139.8 GiB, and B200 178.4 GiB.
///
/// Storage has the 2 TB/s that the 16,384 GPUs of Llama 3 sustained (its paper, section 3.3.1).
///
/// The achieved fractions are not vendors' figures but the results of published measurements of good kernels and links:
/// 0.7 of the peak in large matmuls, 0.35 in those of experts, 0.4 in attention, 0.7 of a link, 0.8 of memory. For
/// matmuls on h100 and h200 they are those of Lehr's runs on an H100: 0.74, and 0.6 times t / (t + 256) at t tokens per
/// expert. docs/plan.md discusses their accuracy.
Machine load_machine(const std::string& name_or_file, const Overrides& overrides = {});

/// Returns `machine` with the figures of this computer's CPU, measured in about three seconds: peaks of float32,
/// bfloat16 and float64, memory bandwidth (train/machine_limits.h) and memory size; and the fractions of the peak that
/// large matmuls, those of experts, and attention reach with the kernels of a training step; and the fixed time of a
/// layer (plan/layer_overhead.h). They hold for this process's number of threads. Links are unchanged. Throws a runtime
/// error if a kernel is faster than the peak: one of them was measured wrongly. `clock` gives the time of everything
/// but the peaks; only tests replace it.
Machine calibrate_cpu(
    Machine machine, const metric::ThroughputMeter::Clock& clock = metric::ThroughputMeter::steady_seconds);

}  // namespace lehr::plan
