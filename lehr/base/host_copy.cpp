#include "lehr/base/host_copy.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lehr {

struct HostCopy::Done {
  c10::Event event;
};

HostCopy::HostCopy(const at::Tensor& tensor) : copy_(tensor.detach()) {
  if (tensor.is_cpu() || tensor.is_meta()) {
    return;
  }
  copy_ = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
  copy_.copy_(tensor.detach(), /*non_blocking=*/true);
  done_ = std::make_unique<Done>(Done{c10::Event(tensor.device().type())});
  done_->event.record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

HostCopy::HostCopy() = default;
HostCopy::~HostCopy() = default;
HostCopy::HostCopy(HostCopy&&) noexcept = default;
HostCopy& HostCopy::operator=(HostCopy&&) noexcept = default;

const at::Tensor& HostCopy::wait() const {
  if (done_) {
    done_->event.synchronize();
  }
  return copy_;
}

}  // namespace lehr
