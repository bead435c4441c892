#include "lehr/mesh/nccl_transport.h"

#include <c10/core/DeviceGuard.h>
#include <dlfcn.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

#include "lehr/base/error.h"
#include "lehr/mesh/device_backend.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/nccl_module.h"

namespace lehr::mesh {

namespace {
// The module lies where the program does, or one folder above (test programs).
void* open_module() {
  require(
      built_with_nccl(),
      "training.device: ranks on GPUs need NCCL, which this build of Lehr does not have; build it where CUDA's "
      "headers, "
      "nccl.h and a torch package for CUDA are (cmake -DLEHR_NCCL=ON says what is missing), or use \"cpu\", or one "
      "rank");
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::string problem;
  for (const auto& place : {folder, folder.parent_path()}) {
    const auto file = place / "liblehr_nccl.so";
    if (std::filesystem::exists(file)) {
      if (void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        return module;
      }
      problem = dlerror();
    }
  }
  fail(
      "training.device: ranks on GPUs need NCCL, and {}",
      problem.empty() ? "its module liblehr_nccl.so is not beside the program (" + folder.string() + ")"
                      : "its module cannot be opened: " + problem);
}

template <class Function>
Function* function_of(void* module, const char* name) {
  void* const address = dlsym(module, name);
  require(address != nullptr, "liblehr_nccl.so: has no function {}; build it together with the program", name);
  return reinterpret_cast<Function*>(address);
}

ConnectDevices nccl(at::Device device, std::chrono::milliseconds timeout) {
  void* const module = open_module();
  const int devices = function_of<NcclDeviceCount>(module, "lehr_nccl_device_count")();
  require(
      device.index() < devices,
      "training.device: this rank is number {} on its machine, which has {} usable GPU{}; start as many ranks as there "
      "are, or use \"cpu\"",
      static_cast<int>(device.index()),
      devices,
      devices == 1 ? "" : "s");
  auto* const connect = function_of<NcclConnect>(module, "lehr_nccl_connect");
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

// Those that a failure must break, by any thread.
class Connected {
 public:
  explicit Connected(at::Device device) : device_(device) {}
  void add(const c10::intrusive_ptr<c10d::Backend>& backend) {
    const std::lock_guard lock(mutex_);
    backends_.emplace_back(backend);
  }
  void abort() noexcept {
    const std::lock_guard lock(mutex_);
    try {
      const c10::DeviceGuard guard(device_);
      for (const auto& weak : std::exchange(backends_, {})) {
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
  RankWatch* watch() override { return host_->watch(); }
  void check() override { host_->check(); }
  void abort(const std::string& message) noexcept override { host_->abort(message); }

  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& ranks) override {
    auto host = host_->connect(group, ranks);  // all are here then, so that NCCL waits for nobody
    std::string key = fmt::format("devices/{}:{}", group, fmt::join(ranks, ","));
    key += fmt::format("#{}", ++connected_before_[key]);
    const auto size = static_cast<int>(ranks.size());
    const int me = host->getRank();
    const std::string what = fmt::format("axis {} (ranks {})", group, fmt::join(ranks, ", "));
    auto channel = [this, key, me, what](int from, int to) {
      const std::string name = fmt::format("{}/{}>{}", key, from, to);
      return connect_devices({nullptr, from == me ? 0 : 1, 2, name, /*messages=*/true}, what);
    };
    const auto backend = make_device_backend(
        {.host = std::move(host),
         .collectives = connect_devices({nullptr, me, size, key, /*messages=*/false}, what),
         .channel = channel,
         .device = options_.device,
         .on_device = options_.on_device});
    if (group == axis::pp || group == axis::cp) {
      greet_neighbours(*backend);
    }
    return backend;
  }

 private:
  c10::intrusive_ptr<c10d::Backend> connect_devices(DeviceGroup group, const std::string& what) {
    group.store = c10::make_intrusive<c10d::PrefixStore>(group.name, store());
    try {
      const c10::DeviceGuard guard(options_.device);
      auto backend = options_.connect(group);
      connected_->add(backend);
      return backend;
    } catch (const std::exception& problem) {
      check();
      fail_runtime("{}: NCCL cannot connect: {}", what, exception_text(problem));
    }
  }

  // NCCL connects two ranks with their first message and holds both hosts meanwhile. In a pipeline and around a ring of
  // context the order of first messages is not the same everywhere; here it is.
  void greet_neighbours(c10d::Backend& backend) const {
    const int size = backend.getSize();
    const int me = backend.getRank();
    const auto options = at::TensorOptions().dtype(at::kFloat).device(options_.device);
    for (int left = 0; left < size; ++left) {
      const int right = (left + 1) % size;
      for (const auto& [from, to] : {std::pair(left, right), std::pair(right, left)}) {
        std::vector<at::Tensor> word{at::zeros({1}, options)};
        if (from == me) {
          backend.send(word, to, 0)->wait();
        } else if (to == me) {
          backend.recv(word, from, 0)->wait();
        }
      }
    }
  }

  NcclOptions options_;
  std::shared_ptr<Connected> connected_;
  std::unique_ptr<Transport> host_;
  std::map<std::string, int64_t> connected_before_;
};
}  // namespace

bool built_with_nccl() {
#ifdef LEHR_HAS_NCCL
  return true;
#else
  return false;
#endif
}

std::unique_ptr<Transport> nccl_transport(const RankEnvironment& environment, NcclOptions options) {
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

}  // namespace lehr::mesh
