#include "lehr/memory/side_stream.h"

namespace lehr {

struct SideStream::Queue {
  explicit Queue(std::shared_ptr<DeviceQueues> queues)
      : device(std::move(queues)),
        stream(device->from_pool()),
        here(device->make_event()),
        there(device->make_event()) {}
  std::shared_ptr<DeviceQueues> device;
  c10::Stream stream;
  std::unique_ptr<DeviceEvent> here;   // in this stream
  std::unique_ptr<DeviceEvent> there;  // in the stream that was current
};

SideStream::SideStream(std::shared_ptr<DeviceQueues> queues)
    : queue_(queues ? std::make_unique<Queue>(std::move(queues)) : nullptr) {}
SideStream::~SideStream() = default;
SideStream::SideStream(SideStream&&) noexcept = default;
SideStream& SideStream::operator=(SideStream&&) noexcept = default;

void SideStream::follow() {
  if (queue_) {
    queue_->there->record(queue_->device->current());
    queue_->there->block(queue_->stream);
  }
}

void SideStream::run(const std::function<void()>& work) {
  if (queue_) {
    queue_->device->run_on(queue_->stream, work);
  } else {
    work();
  }
}

void SideStream::join() {
  if (queue_) {
    mark();
    queue_->here->block(queue_->device->current());
  }
}

void SideStream::mark() {
  if (queue_) {
    queue_->here->record(queue_->stream);
  }
}

void SideStream::wait() const {
  if (queue_) {
    queue_->here->synchronize();
  }
}

at::Tensor to_device_pinned(const at::Tensor& tensor, at::Device device) {
  if (tensor.is_meta()) {
    return tensor;
  }
  if (device.is_cpu() || device.is_meta()) {
    return tensor.to(device);
  }
  const at::Tensor pinned = tensor.is_pinned() ? tensor : tensor.pin_memory();
  return pinned.to(device, /*non_blocking=*/true);
}

}  // namespace lehr
