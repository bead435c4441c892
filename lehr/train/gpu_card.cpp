#include "lehr/train/gpu_card.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "lehr/base/log.h"
#include "lehr/metric/throughput.h"

namespace lehr::train {

namespace {
// A few functions of the driver's C interface, which is stable across versions. They are loaded at run time, because
// CUDA's headers need not be installed where Lehr is compiled.
template <class Function>
Function* driver_function(const char* library, const char* name) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return handle == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle, name));
}

constexpr const char* kCuda = "libcuda.so.1";
constexpr const char* kNvml = "libnvidia-ml.so.1";

// Values of CUdevice_attribute in cuda.h.
enum Attribute : int {
  kMultiprocessors = 16,
  kMemoryClock = 36,
  kMemoryBus = 37,
  kMajor = 75,
  kMinor = 76,
};

std::string driver_version() {
  std::array<char, 96> text{};
  auto* const init = driver_function<int()>(kNvml, "nvmlInit_v2");
  auto* const version = driver_function<int(char*, unsigned)>(kNvml, "nvmlSystemGetDriverVersion");
  if (init != nullptr && version != nullptr && init() == 0 &&
      version(text.data(), static_cast<unsigned>(text.size() - 1)) == 0) {
    return text.data();
  }
  int number = 0;
  auto* const of_cuda = driver_function<int(int*)>(kCuda, "cuDriverGetVersion");
  if (of_cuda != nullptr && of_cuda(&number) == 0) {
    return fmt::format("for CUDA {}.{}", number / 1000, number % 1000 / 10);
  }
  return "";
}

// The data sheet of a card, in 1e12 operations and bytes per second. NVIDIA often gives figures of matmuls with
// sparsity, which are twice as high.
struct DataSheet {
  std::string_view name;  // part of the driver's name for it
  double bfloat16;
  double float8;  // 0: none
  double float32;
  double float64;
  double bytes;
};

// The first match counts, so the longer names of a card precede the shorter ones. " H200" does not match a GH200.
constexpr std::array<DataSheet, 10> kDataSheets{{
    {"A100 80GB PCIe", 312, 0, 19.5, 19.5, 1.935},
    {"A100-SXM4-80GB", 312, 0, 19.5, 19.5, 2.039},
    {"A100", 312, 0, 19.5, 19.5, 1.555},  // with 40 GB
    {"H100 PCIe", 756, 1513, 51, 51, 2.0},
    {"H100 NVL", 835, 1671, 60, 60, 3.9},
    {"H100 80GB HBM3", 989, 1979, 67, 67, 3.35},  // SXM
    {"H100 SXM", 989, 1979, 67, 67, 3.35},
    {"H200 NVL", 835, 1671, 60, 60, 4.8},
    {" H200", 989, 1979, 67, 67, 4.8},
    {" B200", 2250, 4500, 75, 37, 7.7},
}};
}  // namespace

std::string GpuCard::describe() const {
  std::string text = name.empty() ? "a GPU without a name" : name;
  if (memory_bytes > 0) {
    text += ", " + human_bytes(static_cast<double>(memory_bytes));
  }
  if (major > 0) {
    text += fmt::format(", compute capability {}.{}", major, minor);
  }
  if (multiprocessors > 0) {
    text += fmt::format(", {} multiprocessors", multiprocessors);
  }
  return driver.empty() ? text : text + ", driver " + driver;
}

std::optional<GpuCard> find_card(at::Device device) {
  if (!device.is_cuda()) {
    return std::nullopt;
  }
  auto* const get = driver_function<int(int*, int)>(kCuda, "cuDeviceGet");
  auto* const name = driver_function<int(char*, int, int)>(kCuda, "cuDeviceGetName");
  auto* const memory = driver_function<int(size_t*, int)>(kCuda, "cuDeviceTotalMem_v2");
  auto* const attribute = driver_function<int(int*, int, int)>(kCuda, "cuDeviceGetAttribute");
  int number = 0;
  // LibTorch numbers devices as the driver does, after CUDA_VISIBLE_DEVICES.
  if (get == nullptr || name == nullptr || memory == nullptr || attribute == nullptr ||
      get(&number, device.has_index() ? device.index() : 0) != 0) {
    return std::nullopt;
  }
  GpuCard card;
  std::array<char, 256> text{};
  if (name(text.data(), static_cast<int>(text.size() - 1), number) == 0) {
    card.name = text.data();
  }
  if (size_t bytes = 0; memory(&bytes, number) == 0) {
    card.memory_bytes = static_cast<int64_t>(bytes);
  }
  const auto value_of = [&](Attribute which) -> int64_t {
    int value = 0;
    return attribute(&value, which, number) == 0 ? value : 0;
  };
  card.major = value_of(kMajor);
  card.minor = value_of(kMinor);
  card.multiprocessors = value_of(kMultiprocessors);
  card.memory_clock_khz = value_of(kMemoryClock);
  card.memory_bus_bits = value_of(kMemoryBus);
  card.driver = driver_version();
  return card;
}

std::string why_unsupported(const GpuCard& card) {
  constexpr int64_t kLeastMajor = 8;
  if (card.major == 0 || card.major >= kLeastMajor) {
    return "";
  }
  return fmt::format(
      "the GPU ({}) has compute capability {}.{}, and Lehr needs {}.0 (A100) or more",
      card.name,
      card.major,
      card.minor,
      kLeastMajor);
}

MachineLimits card_limits(const GpuCard& card, at::ScalarType dtype) {
  constexpr double kTera = 1e12;
  const auto* const sheet = std::find_if(kDataSheets.begin(), kDataSheets.end(), [&](const DataSheet& known) {
    return card.name.find(known.name) != std::string::npos;
  });
  if (sheet == kDataSheets.end()) {
    return {
        .flops = 0,
        .bytes_per_second =
            2e3 * static_cast<double>(card.memory_clock_khz) * static_cast<double>(card.memory_bus_bits) / 8};
  }
  const double flops = dtype == at::kBFloat16 || dtype == at::kHalf ? sheet->bfloat16
                       : dtype == at::kDouble                       ? sheet->float64
                                                                    : sheet->float32;
  return {.flops = kTera * flops, .float8_flops = kTera * sheet->float8, .bytes_per_second = kTera * sheet->bytes};
}

namespace {
// Returns the bytes per second, read and written, of a copy on the busy device.
double measured_bandwidth(at::Device device, double seconds) {
  constexpr int64_t kBytes = 1 << 30;
  constexpr int kCopies = 8;
  const at::Tensor from = at::zeros({kBytes}, at::TensorOptions(at::kByte).device(device));
  at::Tensor to = at::empty_like(from);
  const double deadline = metric::ThroughputMeter::steady_seconds() + seconds;
  const c10::impl::VirtualGuardImpl devices(device.type());
  double best = 0;
  to.copy_(from);
  do {
    devices.synchronizeDevice(device.index());
    const double begin = metric::ThroughputMeter::steady_seconds();
    for (int i = 0; i < kCopies; ++i) {
      to.copy_(from);
    }
    devices.synchronizeDevice(device.index());
    best = std::max(best, 2.0 * kCopies * kBytes / (metric::ThroughputMeter::steady_seconds() - begin));
  } while (metric::ThroughputMeter::steady_seconds() < deadline);
  return best;
}
}  // namespace

DeviceLimits limits_of(at::Device device, at::ScalarType dtype, double seconds) {
  if (device.is_cpu()) {
    return {.limits = measure_limits(dtype, seconds)};
  }
  const GpuCard card = find_card(device).value_or(GpuCard{.name = device.str()});
  DeviceLimits found{.limits = card_limits(card, dtype), .source = card.name + " (data sheet)"};
  if (found.limits.flops == 0) {
    found.limits.flops = best_matmul_flops(device, dtype, seconds);
    found.source = card.name + " (measured)";
  }
  if (found.limits.bytes_per_second == 0) {
    found.limits.bytes_per_second = measured_bandwidth(device, seconds);
  }
  return found;
}

}  // namespace lehr::train
