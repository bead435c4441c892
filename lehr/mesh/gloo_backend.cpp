#include "lehr/mesh/gloo_backend.h"

#include <gloo/transport/device.h>

#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>

// The wheel has no headers of Gloo; those of Debian's libgloo-dev declare the part that this file needs, and the code
// is the wheel's. No other file may include this header.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace lehr::mesh {

namespace {
// Work whose waits follow a clock that nobody can set. c10d's own waits with a time limit follow the time of day.
class SteadyWork : public c10d::Work {
 public:
  explicit SteadyWork(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)), end_(std::make_shared<End>()) {
    work_->getFuture()->addCallback([end = end_](c10::ivalue::Future&) {
      const std::lock_guard lock(end->mutex);
      end->is_reached = true;
      end->reached.notify_all();
    });
  }

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  void abort() override { work_->abort(); }

  // Returns false when the time is over.
  bool wait(std::chrono::milliseconds timeout) override {
    {
      std::unique_lock lock(end_->mutex);
      const auto is_reached = [this] { return end_->is_reached; };
      if (timeout == kNoTimeout) {
        end_->reached.wait(lock, is_reached);
      } else if (!end_->reached.wait_for(lock, timeout, is_reached)) {
        return false;
      }
    }
    return work_->wait(kNoTimeout);  // Returns immediately, or throws what the work failed with.
  }

 private:
  struct End {
    std::mutex mutex;
    std::condition_variable reached;
    bool is_reached = false;
  };
  c10::intrusive_ptr<c10d::Work> work_;
  std::shared_ptr<End> end_;
};

c10::intrusive_ptr<c10d::Work> steady(c10::intrusive_ptr<c10d::Work> work) {
  return c10::make_intrusive<SteadyWork>(std::move(work));
}

// Chunks that are being received from all ranks, and their sum, which the first successful wait() computes.
class SumOfChunks : public c10d::Work {
 public:
  SumOfChunks(c10::intrusive_ptr<c10d::Work> arrival, at::Tensor chunks, at::Tensor output)
      : arrival_(std::move(arrival)), chunks_(std::move(chunks)), output_(std::move(output)) {}

  // True when the sum is computed, or cannot be any more.
  bool isCompleted() override { return problem_ || (arrival_->isCompleted() && (summed_ || !arrival_->isSuccess())); }
  bool isSuccess() const override { return !problem_ && arrival_->isSuccess(); }
  std::exception_ptr exception() const override { return problem_ ? problem_ : arrival_->exception(); }
  void abort() override { arrival_->abort(); }

  bool wait(std::chrono::milliseconds timeout) override {
    if (problem_) {
      std::rethrow_exception(problem_);
    }
    const bool arrived = arrival_->wait(timeout);
    if (arrived && !summed_) {
      try {
        sum();
      } catch (...) {
        problem_ = std::current_exception();
        throw;
      }
      summed_ = true;
    }
    return arrived;
  }

 private:
  void sum() {
    const at::NoGradGuard no_grad;
    output_.copy_(chunks_[0]);
    for (int64_t rank = 1; rank < chunks_.size(0); ++rank) {
      output_.add_(chunks_[rank]);
    }
    chunks_.reset();
    output_.reset();
  }

  c10::intrusive_ptr<c10d::Work> arrival_;
  at::Tensor chunks_;  // (ranks, elements per chunk)
  at::Tensor output_;
  bool summed_ = false;
  std::exception_ptr problem_;  // of the sum
};
class Collectives : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return steady(ProcessGroupGloo::allreduce(tensors, options));
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return steady(ProcessGroupGloo::_allgather_base(output, input, options));
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    return steady(ProcessGroupGloo::alltoall_base(output, input, output_sizes, input_sizes, options));
  }
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return steady(ProcessGroupGloo::broadcast(tensors, options));
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return steady(ProcessGroupGloo::barrier(options));
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    if (options.reduceOp != c10d::ReduceOp::SUM) {
      return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
    }
    at::Tensor sent = input.view({getSize(), -1});
    at::Tensor chunks = at::empty_like(sent);
    std::vector<int64_t> even;  // empty: equal parts for all ranks
    auto arrival = alltoall_base(chunks, sent, even, even, c10d::AllToAllOptions());
    return c10::make_intrusive<SumOfChunks>(std::move(arrival), chunks, output.view(-1));
  }

  void disconnect() noexcept {
    try {
      for (const auto& context : contexts_) {
        context->closeConnections();
      }
    } catch (const std::exception&) {
      // Another thread has closed them.
    }
  }
};

std::vector<std::shared_ptr<::gloo::transport::Device>> devices(bool local) {
  const char* const interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  std::vector<std::shared_ptr<::gloo::transport::Device>> result;
  if (interfaces != nullptr && *interfaces != '\0') {
    std::istringstream names(interfaces);
    for (std::string name; std::getline(names, name, ',');) {
      result.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
  } else if (local) {
    // A machine's own hostname cannot always be resolved.
    result.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    result.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return result;
}
}  // namespace

GlooBackend connect_gloo(c10::intrusive_ptr<c10d::Store> store, const GlooBackendOptions& options) {
  const auto connecting = c10d::ProcessGroupGloo::Options::create(options.init_timeout);
  connecting->devices = devices(options.local);
  const auto connected = c10::make_intrusive<Collectives>(std::move(store), options.rank, options.size, connecting);
  connected->setTimeout(options.timeout);
  return {.collectives = connected, .disconnect = [connected] { connected->disconnect(); }};
}

}  // namespace lehr::mesh
