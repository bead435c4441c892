#include "lehr/mesh/fake_transport.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::mesh {

namespace {
class Done : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

class FakeBackend : public c10d::Backend {
 public:
  using Seen = std::function<void(const FakeCollective&)>;
  FakeBackend(std::string group, int64_t rank, int64_t size, Seen seen)
      : c10d::Backend(static_cast<int>(rank), static_cast<int>(size)),
        group_(std::move(group)),
        seen_(std::move(seen)) {}

  const std::string getBackendName() const override { return "fake"; }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    const bool sums = options.reduceOp == c10d::ReduceOp::SUM;
    const at::NoGradGuard no_grad;
    if (sums) {
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
    if (seen_) {
      const int64_t bytes = input.defined() ? static_cast<int64_t>(input.nbytes()) : 0;
      seen_({.name = name, .group = group_, .size = size_, .bytes = bytes});
    }
    return c10::make_intrusive<Done>();
  }

  std::string group_;
  Seen seen_;
};

class FakeTransport : public Transport {
 public:
  FakeTransport(int64_t rank, int64_t world_size, FakeBackend::Seen seen)
      : rank_(rank), world_size_(world_size), seen_(std::move(seen)), store_(c10::make_intrusive<c10d::HashStore>()) {}
  int64_t rank() const override { return rank_; }
  int64_t world_size() const override { return world_size_; }
  std::string name() const override { return "fake"; }
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& ranks) override {
    const int64_t index = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return c10::make_intrusive<FakeBackend>(group, index, static_cast<int64_t>(ranks.size()), seen_);
  }
  c10::intrusive_ptr<c10d::Store> store() override { return store_; }

 private:
  int64_t rank_, world_size_;
  FakeBackend::Seen seen_;
  c10::intrusive_ptr<c10d::Store> store_;
};
}  // namespace

std::unique_ptr<Transport> fake_transport(
    int64_t rank, int64_t world_size, std::function<void(const FakeCollective&)> seen) {
  require(
      rank >= 0 && rank < world_size, "fake transport: expected a rank from 0 to {}, found {}", world_size - 1, rank);
  return std::make_unique<FakeTransport>(rank, world_size, std::move(seen));
}

}  // namespace lehr::mesh
