#include "lehr/base/side_stream.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lehr {

struct SideStream::Queue {
  explicit Queue(at::Device where)
      : device(where),
        devices(where.type()),
        stream(devices.getStreamFromGlobalPool(where)),
        here(where.type()),
        there(where.type()) {}
  at::Device device;
  c10::impl::VirtualGuardImpl devices;
  c10::Stream stream;
  c10::Event here;   // of this stream
  c10::Event there;  // of the one that was the current one
};

SideStream::SideStream(at::Device device)
    : queue_(device.is_cpu() || device.is_meta() ? nullptr : std::make_unique<Queue>(device)) {}
SideStream::~SideStream() = default;
SideStream::SideStream(SideStream&&) noexcept = default;
SideStream& SideStream::operator=(SideStream&&) noexcept = default;

void SideStream::follow() {
  if (queue_) {
    queue_->there.record(queue_->devices.getStream(queue_->device));
    queue_->there.block(queue_->stream);
  }
}

void SideStream::run(const std::function<void()>& work) {
  if (!queue_) {
    work();
    return;
  }
  const c10::StreamGuard guard(queue_->stream);
  work();
}

void SideStream::join() {
  if (queue_) {
    mark();
    queue_->here.block(queue_->devices.getStream(queue_->device));
  }
}

void SideStream::mark() {
  if (queue_) {
    queue_->here.record(queue_->stream);
  }
}

void SideStream::wait() const {
  if (queue_) {
    queue_->here.synchronize();
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
