#include "lehr/mesh/device_backend.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>
#include <utility>

namespace lehr::mesh {

namespace {
// Adapts NCCL's work to Watchdog, which expects that wait() returns when the current stream may use the result. NCCL's
// own wait() takes a time limit as a request to block the host, and reports neither success nor failure.
class DeviceWork : public c10d::Work {
 public:
  DeviceWork(c10::intrusive_ptr<c10d::Work> work, at::Device device) : work_(std::move(work)), device_(device) {}
  bool isCompleted() override {
    const c10::DeviceGuard guard(device_);  // a thread without a current device would allocate on the first one
    return work_->isCompleted();            // throws if the device failed: then it is unknown whether the work is done
  }
  bool isSuccess() const override { return exception() == nullptr; }
  std::exception_ptr exception() const override { return work_->exception(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return work_->wait(); }
  void synchronize() override { work_->synchronize(); }
  void abort() override {
    const c10::DeviceGuard guard(device_);
    work_->abort();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  at::Device device_;
};

class DeviceBackend : public c10d::Backend {
 public:
  explicit DeviceBackend(DeviceBackendParts parts)
      : c10d::Backend(parts.host->getRank(), parts.host->getSize()), parts_(std::move(parts)) {}

  const std::string getBackendName() const override { return parts_.host->getBackendName() + " and the devices'"; }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return with(tensors.front(), [&](c10d::Backend& backend) { return backend.allreduce(tensors, options); });
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return with(input, [&](c10d::Backend& backend) { return backend._allgather_base(output, input, options); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return with(input, [&](c10d::Backend& backend) { return backend._reduce_scatter_base(output, input, options); });
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    return with(input, [&](c10d::Backend& backend) {
      return backend.alltoall_base(output, input, output_sizes, input_sizes, options);
    });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return with(tensors.front(), [&](c10d::Backend& backend) { return backend.broadcast(tensors, options); });
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return parts_.host->barrier(options);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    if (!parts_.on_device(tensors.front())) {
      return parts_.host->send(tensors, to, tag);
    }
    return on_device(channel(rank_, to).send(tensors, 1, tag));
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    if (!parts_.on_device(tensors.front())) {
      return parts_.host->recv(tensors, from, tag);
    }
    return on_device(channel(from, rank_).recv(tensors, 0, tag));
  }

 private:
  template <class Start>
  c10::intrusive_ptr<c10d::Work> with(const at::Tensor& tensor, const Start& start) {
    return parts_.on_device(tensor) ? on_device(start(collectives())) : start(*parts_.host);
  }
  c10d::Backend& collectives() {
    if (!collectives_) {
      collectives_ = parts_.collectives();
    }
    return *collectives_;
  }
  c10::intrusive_ptr<c10d::Work> on_device(c10::intrusive_ptr<c10d::Work> work) const {
    return c10::make_intrusive<DeviceWork>(std::move(work), parts_.device);
  }
  c10d::Backend& channel(int from, int to) {
    auto& channel = channels_[{from, to}];
    if (!channel) {
      channel = parts_.channel(from, to);
    }
    return *channel;
  }

  DeviceBackendParts parts_;
  c10::intrusive_ptr<c10d::Backend> collectives_;
  std::map<std::pair<int, int>, c10::intrusive_ptr<c10d::Backend>> channels_;
};
}  // namespace

c10::intrusive_ptr<c10d::Backend> make_device_backend(DeviceBackendParts parts) {
  return c10::make_intrusive<DeviceBackend>(std::move(parts));
}

}  // namespace lehr::mesh
