#include "lehr/mesh/fake_transport.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::mesh {

namespace {
// The callbacks of a transport, which its backends and their works share.
struct Observer {
  std::function<void(const FakeCollective&)> seen;
  std::function<void(size_t number)> waited;
  size_t count = 0;
};

class Done : public c10d::Work {
 public:
  Done(std::shared_ptr<Observer> observer, size_t number) : observer_(std::move(observer)), number_(number) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    if (observer_->waited) {
      observer_->waited(number_);
    }
    return true;
  }

 private:
  std::shared_ptr<Observer> observer_;
  size_t number_;
};

class FakeBackend : public c10d::Backend {
 public:
  FakeBackend(std::string group, int64_t rank, int64_t size, std::shared_ptr<Observer> observer)
      : c10d::Backend(static_cast<int>(rank), static_cast<int>(size)),
        group_(std::move(group)),
        observer_(std::move(observer)) {}

  const std::string getBackendName() const override { return "fake"; }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    const bool sums = options.reduceOp == c10d::ReduceOp::SUM;
    const at::NoGradGuard no_grad;
    if (sums && !tensors.front().is_meta()) {  // there, the product would count as work of the device
      tensors.front().mul_(size_);
    }
    return done(sums ? "all_reduce" : "all_reduce_max", tensors.front());
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& /*options*/) override {
    const at::NoGradGuard no_grad;
    if (output.is_meta()) {
      return done("all_gather", input);
    }
    output.view({size_, input.numel()}).copy_(input.view({1, -1}).expand({size_, input.numel()}));
    return done("all_gather", input);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& /*options*/) override {
    const at::NoGradGuard no_grad;
    if (output.is_meta()) {
      return done("reduce_scatter", input);
    }
    // The output may be a part of the input.
    output.view(-1).copy_(input.view({size_, output.numel()}).select(0, rank_)).mul_(size_);
    return done("reduce_scatter", input);
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& /*output_sizes*/,
      std::vector<int64_t>& /*input_sizes*/,
      const c10d::AllToAllOptions& /*options*/) override {
    const at::NoGradGuard no_grad;
    if (output.is_meta()) {
      return done("all_to_all", input);
    }
    const int64_t rows = output.size(0);
    if (input.size(0) == 0) {
      output.zero_();
    }
    for (int64_t begin = 0; begin < rows && input.size(0) > 0; begin += input.size(0)) {
      const int64_t count = std::min(input.size(0), rows - begin);
      output.narrow(0, begin, count).copy_(input.narrow(0, 0, count));
    }
    return done("all_to_all", input);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& /*options*/) override {
    return done("broadcast", tensors.front());
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override {
    return done("barrier", {});
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int /*to*/, int /*tag*/) override {
    return done("send", tensors.front());
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int /*from*/, int /*tag*/) override {
    return done("receive", tensors.front());
  }

 private:
  c10::intrusive_ptr<c10d::Work> done(const char* name, const at::Tensor& input) const {
    if (observer_->seen) {
      const int64_t bytes = input.defined() ? static_cast<int64_t>(input.nbytes()) : 0;
      observer_->seen({.name = name, .group = group_, .size = size_, .bytes = bytes});
    }
    return c10::make_intrusive<Done>(observer_, observer_->count++);
  }

  std::string group_;
  std::shared_ptr<Observer> observer_;
};

class FakeTransport : public Transport {
 public:
  FakeTransport(int64_t rank, int64_t world_size, bool copies_reductions, std::shared_ptr<Observer> observer)
      : rank_(rank),
        world_size_(world_size),
        copies_reductions_(copies_reductions),
        observer_(std::move(observer)),
        store_(c10::make_intrusive<c10d::HashStore>()) {}
  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  std::string name() const override { return "fake"; }
  bool copies_reductions() const override { return copies_reductions_; }
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& ranks) override {
    const int64_t index = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return c10::make_intrusive<FakeBackend>(group, index, static_cast<int64_t>(ranks.size()), observer_);
  }
  c10::intrusive_ptr<c10d::Store> store() override { return store_; }

 private:
  int64_t rank_, world_size_;
  bool copies_reductions_;
  std::shared_ptr<Observer> observer_;
  c10::intrusive_ptr<c10d::Store> store_;
};
}  // namespace

std::unique_ptr<Transport> fake_transport(
    int64_t rank,
    int64_t world_size,
    std::function<void(const FakeCollective&)> seen,
    std::function<void(size_t number)> waited,
    bool copies_reductions) {
  require(
      rank >= 0 && rank < world_size, "fake transport: expected a rank from 0 to {}, found {}", world_size - 1, rank);
  return std::make_unique<FakeTransport>(
      rank,
      world_size,
      copies_reductions,
      std::make_shared<Observer>(Observer{.seen = std::move(seen), .waited = std::move(waited)}));
}

}  // namespace lehr::mesh
