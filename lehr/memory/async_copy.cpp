#include "lehr/memory/async_copy.h"

namespace lehr {

AsyncCopy::AsyncCopy(const at::Tensor& tensor, const std::shared_ptr<DeviceQueues>& queues) : copy_(tensor.detach()) {
  if (!queues) {
    return;
  }
  copy_ = queues->empty_pinned(tensor.sizes(), tensor.scalar_type());
  queues->copy(copy_, tensor.detach());
  done_ = queues->make_event();
  done_->record(queues->current());
}

AsyncCopy::AsyncCopy() = default;
AsyncCopy::~AsyncCopy() = default;
AsyncCopy::AsyncCopy(AsyncCopy&&) noexcept = default;
AsyncCopy& AsyncCopy::operator=(AsyncCopy&&) noexcept = default;

const at::Tensor& AsyncCopy::wait() const {
  if (done_) {
    done_->synchronize();
  }
  return copy_;
}

}  // namespace lehr
