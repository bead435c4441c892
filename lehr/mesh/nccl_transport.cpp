#include "lehr/mesh/nccl_transport.h"

#include <c10/core/DeviceGuard.h>
#include <dlfcn.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "lehr/base/error.h"
#include "lehr/base/own_folder.h"
#include "lehr/mesh/device_backend.h"
#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/nccl_module.h"
#include "lehr/mesh/rank_device.h"

namespace lehr::mesh {

namespace {
// Opened once.
struct Module {
  void* handle = nullptr;
  std::string problem = "";
};

Module open_module() {
  if (!built_with_nccl()) {
    return {
        .problem =
            "ranks on GPUs need NCCL, which this build of Lehr does not have; build it where CUDA's headers, "
            "nccl.h and a torch package for CUDA are (cmake -DLEHR_NCCL=ON says what is missing), or use "
            "\"cpu\", or one rank"};
  }
  const auto file = own_file("liblehr_nccl.so");
  if (file.empty()) {
    return {
        .problem = "ranks on GPUs need NCCL, and its module liblehr_nccl.so is not beside the program (" +
                   own_folder().string() + ")"};
  }
  if (void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    return {.handle = handle};
  }
  return {.problem = fmt::format("ranks on GPUs need NCCL, and its module cannot be opened: {}", dlerror())};
}

const Module& module() {
  static const Module kModule = open_module();
  return kModule;
}

template <class Function>
Function* function_of_module(const char* name) {
  require(module().handle != nullptr, "training.device: {}", module().problem);
  return function_of<Function>(module().handle, "liblehr_nccl.so", name);
}

// Connects by NCCL on `device`, which has an index.
ConnectDevices nccl(at::Device device, std::chrono::milliseconds timeout) {
  auto* const connect = function_of_module<NcclConnect>("lehr_nccl_connect");
  return [connect, device, timeout](const DeviceGroup& group) {
    return c10::intrusive_ptr<c10d::Backend>::reclaim(connect(
        group.store.get(),
        group.rank,
        group.size,
        group.messages ? -1 : device.index(),
        timeout.count(),
        group.name.c_str()));
  };
}

// The connections that a failure must break, by any thread.
class Connected {
 public:
  explicit Connected(at::Device device) : device_(device) {}
  void add(const c10::intrusive_ptr<c10d::Backend>& backend) {
    const std::lock_guard lock(mutex_);
    backends_.emplace_back(backend);
  }
  // Takes as long as the device does. Concurrent callers need not wait: each connection is broken by one thread.
  void abort() noexcept {
    std::vector<c10::weak_intrusive_ptr<c10d::Backend>> backends;
    {
      const std::lock_guard lock(mutex_);
      backends = std::exchange(backends_, {});
    }
    try {
      const c10::DeviceGuard guard(device_);
      for (const auto& weak : backends) {
        if (const auto backend = weak.lock()) {
          backend->abort();
        }
      }
    } catch (const std::exception&) {
      // It was broken already.
    }
  }

 private:
  at::Device device_;
  std::mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<c10d::Backend>> backends_;
};

class NcclTransport : public Transport {
 public:
  NcclTransport(
      const std::function<std::unique_ptr<Transport>(std::function<void()>)>& connect_hosts, NcclOptions options)
      : options_(std::move(options)),
        connected_(std::make_shared<Connected>(options_.device)),
        host_(connect_hosts([connected = connected_] { connected->abort(); })) {}

  int64_t rank() const override { return host_->rank(); }
  int64_t world_size() const override { return host_->world_size(); }
  std::string name() const override { return "nccl"; }
  at::Device device() const override { return options_.device; }
  c10::intrusive_ptr<c10d::Store> store() override { return host_->store(); }
  Watchdog* watch() override { return host_->watch(); }
  void check() override { host_->check(); }
  void abort(const std::string& message) noexcept override { host_->abort(message); }
  std::unique_ptr<Transport> take_hosts() { return std::move(host_); }
  bool connects_by_messages() const override { return true; }
  int64_t num_communicators() const override { return num_communicators_; }

  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& ranks) override {
    auto host = host_->connect(group, ranks);
    std::string key = fmt::format("devices/{}:{}", group, fmt::join(ranks, ","));
    key += fmt::format("#{}", ++connected_before_[key]);
    const auto size = static_cast<int>(ranks.size());
    const int me = host->getRank();
    const std::string what = fmt::format("axis {} (ranks {})", group, fmt::join(ranks, ", "));
    auto channel = [this, key, me, what](int from, int to) {
      const std::string name = fmt::format("{}/{}>{}", key, from, to);
      return connect_devices({nullptr, from == me ? 0 : 1, 2, name, /*messages=*/true}, what);
    };
    auto collectives = [this, key, me, size, what, host] {
      host->barrier()->wait();  // all ranks have arrived, so NCCL waits for none
      return connect_devices({nullptr, me, size, key, /*messages=*/false}, what);
    };
    return make_device_backend(
        {.host = std::move(host),
         .collectives = std::move(collectives),
         .channel = channel,
         .device = options_.device,
         .on_device = options_.on_device});
  }

 private:
  c10::intrusive_ptr<c10d::Backend> connect_devices(DeviceGroup group, const std::string& what) {
    group.store = c10::make_intrusive<c10d::PrefixStore>(group.name, store());
    try {
      const c10::DeviceGuard guard(options_.device);
      auto backend = options_.connect(group);
      connected_->add(backend);
      ++num_communicators_;
      return backend;
    } catch (const std::exception& problem) {
      check();
      fail_runtime("{}: NCCL cannot connect: {}", what, exception_text(problem));
    }
  }

  NcclOptions options_;
  std::shared_ptr<Connected> connected_;
  std::unique_ptr<Transport> host_;
  std::map<std::string, int64_t> connected_before_;
  std::atomic<int64_t> num_communicators_ = 0;  // also counted by autograd's thread
};
}  // namespace

bool built_with_nccl() {
#ifdef LEHR_HAS_NCCL
  return true;
#else
  return false;
#endif
}

std::string open_nccl() {
  return module().problem;
}

std::string nccl_device_name(int64_t device) {
  return function_of_module<NcclDeviceName>("lehr_nccl_device_name")(static_cast<int>(device));
}

std::unique_ptr<Transport> nccl_transport(const RankEnvironment& environment, NcclOptions options) {
  if (!options.device.has_index()) {
    const int visible = function_of_module<NcclDeviceCount>("lehr_nccl_device_count")();
    const GpuNumber gpu = gpu_of_rank(environment.local_rank, environment.local_world_size, visible);
    require(gpu.problem.empty(), "training.device: {}", gpu.problem);
    options.device.set_index(static_cast<c10::DeviceIndex>(gpu.number));
  }
  if (!options.connect) {
    options.connect = nccl(options.device, options.host.timeout);
  }
  const GlooOptions host = options.host;
  return nccl_transport(
      [&](std::function<void()> disconnect) {
        GlooOptions with_devices = host;
        with_devices.disconnect = std::move(disconnect);
        return gloo_transport(environment, with_devices);
      },
      std::move(options));
}

std::unique_ptr<Transport> nccl_transport(
    const std::function<std::unique_ptr<Transport>(std::function<void()> disconnect)>& connect_hosts,
    NcclOptions options) {
  return std::make_unique<NcclTransport>(connect_hosts, std::move(options));
}

std::unique_ptr<Transport> hosts_of(std::unique_ptr<Transport> nccl) {
  return dynamic_cast<NcclTransport&>(*nccl).take_hosts();
}

}  // namespace lehr::mesh
