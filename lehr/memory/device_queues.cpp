#include "lehr/memory/device_queues.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lehr {

namespace {
class TorchEvent final : public DeviceEvent {
 public:
  explicit TorchEvent(at::DeviceType type) : event_(type) {}
  void record(c10::Stream stream) override { event_.record(stream); }
  void block(c10::Stream stream) override { event_.block(stream); }
  void synchronize() override { event_.synchronize(); }

 private:
  c10::Event event_;
};

class TorchQueues final : public DeviceQueues {
 public:
  explicit TorchQueues(at::Device device) : device_(device), devices_(device.type()) {}
  c10::Stream current() override { return devices_.getStream(device_); }
  c10::Stream from_pool() override { return devices_.getStreamFromGlobalPool(device_); }
  void run_on(c10::Stream stream, const std::function<void()>& work) override {
    const c10::StreamGuard guard(stream);  // also sets the device: a new thread starts with device 0
    work();
  }
  std::unique_ptr<DeviceEvent> make_event() override { return std::make_unique<TorchEvent>(device_.type()); }
  at::Tensor empty_pinned(at::IntArrayRef sizes, at::ScalarType type) override {
    return at::empty(sizes, at::TensorOptions().dtype(type).device(at::kCPU).pinned_memory(true));
  }
  void copy(const at::Tensor& target, const at::Tensor& source) override {
    target.copy_(source, /*non_blocking=*/true);
  }

 private:
  at::Device device_;
  c10::impl::VirtualGuardImpl devices_;
};
}  // namespace

std::shared_ptr<DeviceQueues> device_queues(at::Device device) {
  return device.is_cpu() || device.is_meta() ? nullptr : std::make_shared<TorchQueues>(device);
}

}  // namespace lehr
