#include "lehr/plan/machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/config/config.h"
#include "lehr/config/suggest.h"

namespace lehr::plan {

namespace {
Rule fraction() {
  return {.min = 0, .max = 1, .min_excluded = true};
}

// 419 unexpected interruptions of 16,384 GPUs in 54 days: The Llama 3 Herd of Models, section 3.3.4.
constexpr double kMtbfHours = 54.0 * 24 * 16384 / 419;

// The defaults of Machine are the fractions of H100 and H200. Those of experts are as in bench/published/machines. In
// training steps on an H100 (bench/results_h100_80gb_hbm3.md), matmuls of layers reach 0.75 of the peak on average, and
// grouped ones of 128 experts 0.58 at 2,048 tokens per expert. Other GPUs have the fractions of published measurements.
constexpr double kPublishedFraction = 0.7, kPublishedExpertFraction = 0.35;

const std::array<Machine, 5>& presets() {
  static const std::array<Machine, 5> kPresets{
      Machine{.tflops_float8 = 1979, .device_mtbf_hours = kMtbfHours},
      Machine{
          .name = "h200",
          .tflops_float8 = 1979,
          .memory_gb = 150.1,
          .memory_gb_per_second = 4800,
          .device_mtbf_hours = kMtbfHours},
      Machine{
          .name = "b200",
          .tflops_bfloat16 = 2250,
          .tflops_float32 = 80,
          .tflops_float64 = 40,
          .achieved_fraction = kPublishedFraction,
          .achieved_expert_fraction = kPublishedExpertFraction,
          .expert_half_tokens = 0,
          .tflops_float8 = 4500,
          .memory_gb = 191.5,
          .memory_gb_per_second = 7700,
          .node_gb_per_second = 900,
          .device_mtbf_hours = kMtbfHours},
      Machine{
          .name = "a100",
          .tflops_bfloat16 = 312,
          .tflops_float32 = 19.5,
          .tflops_float64 = 19.5,
          .achieved_fraction = kPublishedFraction,
          .achieved_expert_fraction = kPublishedExpertFraction,
          .expert_half_tokens = 0,
          .memory_gb = 85,
          .memory_gb_per_second = 2039,
          .node_gb_per_second = 300,
          .network_gb_per_second = 25,
          .device_mtbf_hours = kMtbfHours},
      Machine{
          .name = "cpu",
          .tflops_bfloat16 = 0.3,
          .tflops_float32 = 0.15,
          .tflops_float64 = 0.075,
          .achieved_fraction = 0.8,
          .achieved_expert_fraction = 0.6,
          .expert_half_tokens = 0,
          .achieved_attention_fraction = 0.5,
          .memory_gb = 8,
          .reserved_gb = 0.3,
          .memory_gb_per_second = 20,
          .ranks_per_node = 2,
          .node_gb_per_second = 2,
          .node_latency_us = 100,
          .network_gb_per_second = 1,
          .network_latency_us = 200,
          .layer_overhead_us = 200,
          .communication_overlap = 0.3}};
  return kPresets;
}
}  // namespace

namespace {
void compute_fields(Machine& m, FieldVisitor& v) {
  v.optional(
      "name",
      m.name,
      "Name in the report. In a file it also selects the preset to start from: h100, h200, b200, a100 or cpu.");
  v.optional("tflops_bfloat16", m.tflops_bfloat16, "Peak TFLOP/s of a device in bfloat16 matmuls.", positive());
  v.optional("tflops_float32", m.tflops_float32, "Peak TFLOP/s in float32 matmuls.", positive());
  v.optional("tflops_float64", m.tflops_float64, "Peak TFLOP/s in float64 matmuls.", positive());
  v.optional("achieved_fraction", m.achieved_fraction, "Fraction of the peak that matmuls reach.", fraction());
  v.optional(
      "achieved_expert_fraction",
      m.achieved_expert_fraction,
      "Fraction of the peak that matmuls of experts reach, which have few tokens each.",
      fraction());
  v.optional(
      "expert_half_tokens",
      m.expert_half_tokens,
      "Tokens per expert at which its matmuls reach half of achieved_expert_fraction; 0: that fraction with any "
      "number.",
      at_least(0));
  v.optional(
      "achieved_attention_fraction",
      m.achieved_attention_fraction,
      "Fraction of the peak that core attention reaches.",
      fraction());
  v.optional(
      "achieved_fraction_bfloat16",
      m.achieved_fraction_bfloat16,
      "The same as achieved_fraction in bfloat16, if that differs; experts then differ by the same factor.",
      fraction());
  v.optional(
      "achieved_attention_fraction_bfloat16",
      m.achieved_attention_fraction_bfloat16,
      "The same as achieved_attention_fraction in bfloat16, if that differs.",
      fraction());
  v.optional(
      "tflops_float8",
      m.tflops_float8,
      "Peak TFLOP/s of a device in float8 matmuls; unset: those of the dtype of other matmuls.",
      positive());
  v.optional(
      "achieved_float8_fraction",
      m.achieved_float8_fraction,
      "Fraction of tflops_float8 that matmuls reach, with the casts to float8.",
      fraction());
  v.optional(
      "sustained_clock_fraction",
      m.sustained_clock_fraction,
      "Clock of sustained matmuls, which a power limit may throttle, relative to the clock at which the fractions "
      "above hold; scales matmuls and attention.",
      fraction());
  v.optional("memory_gb", m.memory_gb, "Memory of a device in GB (1e9 bytes).", positive());
  v.optional(
      "reserved_gb",
      m.reserved_gb,
      "Part of memory_gb that tensors cannot use: device context, communication buffers, fragmentation.",
      at_least(0));
  v.optional("memory_gb_per_second", m.memory_gb_per_second, "Memory bandwidth of a device in GB/s.", positive());
  v.optional(
      "achieved_memory_fraction",
      m.achieved_memory_fraction,
      "Fraction of the memory bandwidth that element-wise operators reach; above 1 where caches help.",
      positive());
}

void link_fields(Machine& m, FieldVisitor& v) {
  v.optional("ranks_per_node", m.ranks_per_node, "Devices per node, which share the fast links.", positive());
  v.optional(
      "node_direct_links",
      m.node_direct_links,
      "Each pair of a node's devices has its own link, without a switch: m of n devices reach (m - 1) / (n - 1) of "
      "node_gb_per_second.");
  v.optional(
      "node_gb_per_second",
      m.node_gb_per_second,
      "Bandwidth within a node, per device and direction, in GB/s.",
      positive());
  v.optional(
      "node_latency_us",
      m.node_latency_us,
      "Latency within a node per step of a collective, in microseconds.",
      at_least(0));
  v.optional(
      "network_gb_per_second",
      m.network_gb_per_second,
      "Bandwidth between nodes, per device and direction, in GB/s.",
      positive());
  v.optional(
      "network_latency_us",
      m.network_latency_us,
      "Latency between nodes per step of a collective, in microseconds.",
      at_least(0));
  v.optional(
      "achieved_link_fraction",
      m.achieved_link_fraction,
      "Fraction of a link's bandwidth that collectives reach.",
      fraction());
  v.optional(
      "layer_overhead_us",
      m.layer_overhead_us,
      "Fixed overhead per layer of each forward and backward, in microseconds, beyond compute, memory and links.",
      at_least(0));
  v.optional(
      "expert_layer_overhead_us",
      m.expert_layer_overhead_us,
      "Additional overhead per layer with experts, in microseconds: the host reads their token counts and launches many "
      "small kernels.",
      at_least(0));
  v.optional(
      "communication_overlap",
      m.communication_overlap,
      "Speed of a collective while its rank computes, as a fraction of its speed on an idle device.",
      between(0, 1));
}

void failure_fields(Machine& m, FieldVisitor& v) {
  v.optional(
      "rank_deviation",
      m.rank_deviation,
      "Standard deviation of the compute speed of ranks, as a fraction of it; the slowest rank delays all others.",
      between(0, 1));
  v.optional(
      "device_mtbf_hours",
      m.device_mtbf_hours,
      "Mean time between failures that stop a run, of one device with its share of the node and network, in hours; "
      "unset: no expected goodput.",
      positive());
  v.optional(
      "restart_seconds",
      m.restart_seconds,
      "Seconds from a failure until the run trains again, including the load of the checkpoint.",
      at_least(0));
  v.optional(
      "host_gb_per_second",
      m.host_gb_per_second,
      "Bandwidth of the copy of a checkpoint from a device to its host, for which the run waits, in GB/s per device.",
      positive());
  v.optional(
      "storage_gb_per_second",
      m.storage_gb_per_second,
      "Bandwidth of writing a checkpoint to storage while all devices write, in GB/s per device.",
      positive());
}
}  // namespace

void Machine::fields(FieldVisitor& v) {
  compute_fields(*this, v);
  link_fields(*this, v);
  failure_fields(*this, v);
}

void Machine::check(Problems& problems) const {
  if (reserved_gb >= memory_gb) {
    problems.add(
        "reserved_gb",
        fmt::format(
            "must be below memory_gb ({}), or no memory is left for tensors, found {}", memory_gb, reserved_gb));
  }
}

double Machine::peak_flops(at::ScalarType dtype) const {
  switch (dtype) {
    case at::kBFloat16:
      return tflops_bfloat16 * 1e12;
    case at::kDouble:
      return tflops_float64 * 1e12;
    default:
      return tflops_float32 * 1e12;
  }
}

double Machine::float8_flops(at::ScalarType dtype) const {
  return tflops_float8 ? *tflops_float8 * 1e12 * achieved_float8_fraction : peak_flops(dtype) * matmul_fraction(dtype);
}

double Machine::slowest_of(int64_t ranks) const {
  return ranks > 1 ? rank_deviation * std::sqrt(2 * std::log(static_cast<double>(ranks))) : 0;
}

double Machine::matmul_fraction(at::ScalarType dtype) const {
  return dtype == at::kBFloat16 ? achieved_fraction_bfloat16.value_or(achieved_fraction) : achieved_fraction;
}

double Machine::expert_fraction(at::ScalarType dtype, double tokens) const {
  const double filled = tokens > 0 ? tokens / (tokens + expert_half_tokens) : 1;
  return filled * achieved_expert_fraction * (matmul_fraction(dtype) / achieved_fraction);
}

double Machine::attention_fraction(at::ScalarType dtype) const {
  return dtype == at::kBFloat16 ? achieved_attention_fraction_bfloat16.value_or(achieved_attention_fraction)
                                : achieved_attention_fraction;
}

Machine load_machine(const std::string& name_or_file, const Overrides& overrides) {
  const auto preset = [](const std::string& name) {
    return std::find_if(presets().begin(), presets().end(), [&](const Machine& one) { return one.name == name; });
  };
  Machine machine;
  ConfigSources sources{.file = {}, .overrides = overrides, .option = "machine"};
  if (const auto found = preset(name_or_file); found != presets().end()) {
    machine = *found;
  } else {
    std::vector<std::string> names;
    for (const Machine& one : presets()) {
      names.push_back(one.name);
    }
    const auto nearest = suggest(name_or_file, names);
    require(
        std::filesystem::exists(name_or_file) || !name_or_file.ends_with(".toml"),
        "machine: {}: no such file",
        name_or_file);
    require(
        std::filesystem::exists(name_or_file),
        "machine: expected h100, h200, b200, a100, cpu or a TOML file, found '{}'{}",
        name_or_file,
        nearest ? fmt::format("; did you mean '{}'?", *nearest) : "");
    sources.file = name_or_file;
  }
  const Node node = merge_sources(sources);
  if (const Node* name = node.find("name"); name != nullptr && name->is_string()) {
    if (const auto found = preset(name->as_string()); found != presets().end()) {
      machine = *found;
    }
  }
  load_object(ConfigObject::of(machine), node, "machine");
  return machine;
}

}  // namespace lehr::plan
