#include "lehr/mesh/gloo_backend.h"

#include <gloo/transport/device.h>

#include <cstdlib>
#include <sstream>

// The wheel has no headers of Gloo; those of Debian's libgloo-dev declare the part that this file needs, and the code
// is the wheel's. No other file may include this header.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace lehr::mesh {

namespace {
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

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    if (options.reduceOp != c10d::ReduceOp::SUM) {
      return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
    }
    at::Tensor sent = input.view({getSize(), -1});
    at::Tensor chunks = at::empty_like(sent);
    std::vector<int64_t> even;  // empty: equal parts for all ranks
    auto arrival = alltoall_base(chunks, sent, even, even);
    return c10::make_intrusive<SumOfChunks>(std::move(arrival), chunks, output.view(-1));
  }

  void disconnect() noexcept {
    try {
      for (const auto& context : contexts_) {
        context->closeConnections();
      }
    } catch (const std::exception&) {
      // Another thread has done it.
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
