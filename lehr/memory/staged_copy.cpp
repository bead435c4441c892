#include "lehr/memory/staged_copy.h"

#include <algorithm>
#include <bit>

#include "lehr/base/error.h"

namespace lehr {

StagedCopy::StagedCopy(std::shared_ptr<DeviceQueues> queues, int64_t pinned_bytes)
    : queues_(std::move(queues)), buffer_bytes_(pinned_bytes / kBuffers), stream_(queues_) {
  require(
      pinned_bytes >= 16 * kBuffers && std::has_single_bit(static_cast<uint64_t>(pinned_bytes)),
      "pinned memory for copies: expected a power of two from {} bytes on, found {}",
      16 * kBuffers,
      pinned_bytes);
}

void StagedCopy::copy(const at::Tensor& target, const at::Tensor& source) {
  const at::NoGradGuard no_grad;
  while (buffers_.size() < static_cast<size_t>(kBuffers)) {
    buffers_.push_back({queues_->empty_pinned({buffer_bytes_}, at::kByte), queues_->make_event(), {}});
  }
  at::Tensor flat;
  stream_.run([&] { flat = source.detach().contiguous().view(-1); });
  const int64_t room = buffer_bytes_ / static_cast<int64_t>(target.element_size());
  for (int64_t first = 0; first < flat.numel(); first += room) {
    const int64_t count = std::min(room, flat.numel() - first);
    Buffer& buffer = buffers_[next_++ % buffers_.size()];
    empty(buffer);
    stream_.run([&] {
      const int64_t bytes = count * static_cast<int64_t>(target.element_size());
      queues_->copy(buffer.pinned.narrow(0, 0, bytes).view(target.scalar_type()), flat.narrow(0, first, count));
      buffer.done->record(queues_->current());
    });
    buffer.target = target.view(-1).narrow(0, first, count);
  }
}

void StagedCopy::empty(Buffer& buffer) {
  if (!buffer.target.defined()) {
    return;
  }
  buffer.done->synchronize();
  const auto bytes = static_cast<int64_t>(buffer.target.nbytes());
  buffer.target.copy_(buffer.pinned.narrow(0, 0, bytes).view(buffer.target.scalar_type()));
  buffer.target.reset();
}

void StagedCopy::finish() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    empty(buffers_[next_++ % buffers_.size()]);
  }
}

}  // namespace lehr
