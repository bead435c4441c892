#include "lehr/plan/machine.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lehr/base/config.h"
#include "lehr/base/error.h"
#include "lehr/base/suggest.h"
#include "lehr/metric/throughput.h"

namespace lehr::plan {

namespace {
Rule fraction() {
  return {.min = 0, .max = 1, .min_excluded = true};
}

const std::array<Machine, 4>& presets() {
  static const std::array<Machine, 4> kPresets{
      Machine{},
      Machine{.name = "h200", .memory_gb = 141, .memory_gb_per_second = 4800},
      Machine{
          .name = "a100",
          .tflops_bfloat16 = 312,
          .tflops_float32 = 19.5,
          .tflops_float64 = 19.5,
          .memory_gb_per_second = 2039,
          .node_gb_per_second = 300,
          .network_gb_per_second = 25},
      Machine{
          .name = "cpu",
          .tflops_bfloat16 = 0.3,
          .tflops_float32 = 0.15,
          .tflops_float64 = 0.075,
          .achieved_fraction = 0.8,
          .achieved_expert_fraction = 0.6,
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

double copy_bandwidth() {
  constexpr int64_t kBytes = 256 << 20;  // far above any cache
  const at::Tensor from = at::ones({kBytes}, at::kByte);
  at::Tensor to = at::ones({kBytes}, at::kByte);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const double begin = metric::ThroughputMeter::steady_seconds();
    to.copy_(from);
    const double elapsed = metric::ThroughputMeter::steady_seconds() - begin;
    best = std::max(best, 2.0 * kBytes / elapsed);
  }
  return best;
}
}  // namespace

void Machine::fields(FieldVisitor& v) {
  v.optional(
      "name", name, "What the report calls it; in a file, also the preset (h100, h200, a100, cpu) it starts from.");
  v.optional("tflops_bfloat16", tflops_bfloat16, "Peak of a device in bfloat16 products, 1e12 a second.", positive());
  v.optional("tflops_float32", tflops_float32, "Peak in float32 products.", positive());
  v.optional("tflops_float64", tflops_float64, "Peak in float64 products.", positive());
  v.optional("achieved_fraction", achieved_fraction, "Share of the peak that matrix products reach.", fraction());
  v.optional(
      "achieved_expert_fraction",
      achieved_expert_fraction,
      "Share of the peak that the products of experts reach, each over the few tokens that came to it.",
      fraction());
  v.optional(
      "achieved_attention_fraction",
      achieved_attention_fraction,
      "Share of the peak that the core of attention reaches.",
      fraction());
  v.optional("memory_gb", memory_gb, "Memory of a device, 1e9 bytes.", positive());
  v.optional(
      "reserved_gb",
      reserved_gb,
      "Of it, what is not for tensors: context of the device, communication buffers, fragments.",
      at_least(0));
  v.optional("memory_gb_per_second", memory_gb_per_second, "Bandwidth of that memory.", positive());
  v.optional(
      "achieved_memory_fraction", achieved_memory_fraction, "Share of it that element-wise work reaches.", fraction());
  v.optional("ranks_per_node", ranks_per_node, "Devices that share the fast links.", positive());
  v.optional("node_gb_per_second", node_gb_per_second, "Fast links: of one device, in one direction.", positive());
  v.optional("node_latency_us", node_latency_us, "Fast links: microseconds of one step of a collective.", at_least(0));
  v.optional(
      "network_gb_per_second", network_gb_per_second, "Between nodes: of one device, in one direction.", positive());
  v.optional("network_latency_us", network_latency_us, "Between nodes: microseconds of one step.", at_least(0));
  v.optional("achieved_link_fraction", achieved_link_fraction, "Share of a link that collectives reach.", fraction());
  v.optional(
      "layer_overhead_us",
      layer_overhead_us,
      "Microseconds that a layer costs in each of forward and backward beyond products, memory and links.",
      at_least(0));
  v.optional(
      "communication_overlap",
      communication_overlap,
      "Share of a computation's time behind which communication that may run beside it hides.",
      between(0, 1));
}

void Machine::check(Problems& problems) const {
  if (reserved_gb >= memory_gb) {
    problems.add(
        "reserved_gb",
        fmt::format("must be below memory_gb ({}), as nothing is left otherwise, found {}", memory_gb, reserved_gb));
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

std::span<const Machine> machine_presets() {
  return presets();
}

Machine load_machine(
    const std::string& name_or_file, const std::vector<std::pair<std::string, std::string>>& overrides) {
  const auto preset = [](const std::string& name) {
    return std::find_if(presets().begin(), presets().end(), [&](const Machine& one) { return one.name == name; });
  };
  Machine machine;
  ConfigSources sources{.file = {}, .overrides = overrides};
  if (const auto found = preset(name_or_file); found != presets().end()) {
    machine = *found;
  } else {
    std::vector<std::string> names;
    for (const Machine& one : presets()) {
      names.push_back(one.name);
    }
    const auto nearest = suggest(name_or_file, names);
    require(
        std::filesystem::exists(name_or_file),
        "machine: expected h100, h200, a100, cpu or a TOML file, found '{}'{}",
        name_or_file,
        nearest ? fmt::format("; did you mean '{}'?", *nearest) : "");
    sources.file = name_or_file;
  }
  const Node node = merge_sources(sources);
  if (const Node* name = node.find("name"); sources.file && name != nullptr && name->is_string()) {
    if (const auto found = preset(name->as_string()); found != presets().end()) {
      machine = *found;
    }
  }
  load_object(ConfigObject::of(machine), node, "machine");
  return machine;
}

Machine calibrate_cpu(Machine machine) {
  constexpr double kSeconds = 0.5;
  machine.tflops_float32 = metric::measure_peak_flops(at::kCPU, at::kFloat, kSeconds) / 1e12;
  machine.tflops_bfloat16 = metric::measure_peak_flops(at::kCPU, at::kBFloat16, kSeconds) / 1e12;
  machine.tflops_float64 = metric::measure_peak_flops(at::kCPU, at::kDouble, kSeconds) / 1e12;
  machine.achieved_fraction = 1;
  machine.achieved_expert_fraction = 0.75;
  machine.achieved_attention_fraction = 0.6;
  machine.memory_gb_per_second = copy_bandwidth() / 1e9;
  machine.achieved_memory_fraction = 1;
  machine.memory_gb = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) / 1e9;
  machine.reserved_gb = std::min(machine.reserved_gb, machine.memory_gb / 2);
  return machine;
}

}  // namespace lehr::plan
