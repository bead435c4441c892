#include "lehr/mesh/thread_backend.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lehr/base/box.h"
#include "lehr/base/error.h"
#include "lehr/meter/memory_meter.h"

namespace lehr::mesh {

namespace {
class ThreadBackend : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<ThreadCommunicator> communicator, int64_t rank);

  const std::string getBackendName() const override { return "threads"; }
  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(
      std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override;

 private:
  std::shared_ptr<ThreadCommunicator> communicator_;
};

// A collective that was complete when its call returned.
class Done : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

c10::intrusive_ptr<c10d::Work> done() {
  return c10::make_intrusive<Done>();
}

std::string call_of(const char* name, const at::Tensor& tensor) {
  return fmt::format("{} of {} {}", name, tensor.numel(), c10::toString(tensor.scalar_type()));
}

ThreadBackend::ThreadBackend(std::shared_ptr<ThreadCommunicator> communicator, int64_t rank)
    : c10d::Backend(static_cast<int>(rank), static_cast<int>(communicator->size())),
      communicator_(std::move(communicator)) {}

c10::intrusive_ptr<c10d::Work> ThreadBackend::allreduce(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) {
  const at::NoGradGuard no_grad;
  const bool maximum = options.reduceOp == c10d::ReduceOp::MAX;
  const at::Tensor flat = tensors.front().view(-1);
  // Each rank reduces its own chunk for all ranks, out of place: the others still read.
  const Range mine = chunk({0, flat.numel()}, rank_, size_);
  const at::Tensor reduced = at::empty({mine.size()}, flat.options());
  communicator_->meet(
      rank_, {.call = call_of(maximum ? "all_reduce_max" : "all_reduce", flat), .input = flat, .scratch = reduced});
  reduced.copy_(communicator_->slot(0).input.narrow(0, mine.begin, mine.size()));
  for (int64_t other = 1; other < size_; ++other) {
    const at::Tensor theirs = communicator_->slot(other).input.narrow(0, mine.begin, mine.size());
    maximum ? at::maximum_out(const_cast<at::Tensor&>(reduced), reduced, theirs) : reduced.add_(theirs);
  }
  communicator_->wait_for_all();
  for (int64_t other = 0; other < size_; ++other) {
    const Range part = chunk({0, flat.numel()}, other, size_);
    flat.narrow(0, part.begin, part.size()).copy_(communicator_->slot(other).scratch);
  }
  communicator_->wait_for_all();
  return done();
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& /*options*/) {
  const at::NoGradGuard no_grad;
  communicator_->meet(rank_, {.call = call_of("all_gather", input), .input = input.view(-1)});
  const at::Tensor parts = output.view({size_, input.numel()});
  for (int64_t other = 0; other < size_; ++other) {
    parts.select(0, other).copy_(communicator_->slot(other).input);
  }
  communicator_->wait_for_all();
  return done();
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& /*options*/) {
  const at::NoGradGuard no_grad;
  const int64_t count = output.numel();
  communicator_->meet(rank_, {.call = call_of("reduce_scatter", output), .input = input.view(-1)});
  const auto part_of = [&](int64_t other) { return communicator_->slot(other).input.narrow(0, rank_ * count, count); };
  // The output may be a part of the input.
  at::Tensor sum = part_of(0).clone();
  for (int64_t other = 1; other < size_; ++other) {
    sum.add_(part_of(other));
  }
  communicator_->wait_for_all();
  output.view(-1).copy_(sum);
  return done();
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_sizes,
    std::vector<int64_t>& input_sizes,
    const c10d::AllToAllOptions& /*options*/) {
  const at::NoGradGuard no_grad;
  const auto ranks = static_cast<size_t>(size_);
  std::vector<int64_t> begins(ranks + 1, 0);
  for (size_t other = 0; other < ranks; ++other) {
    const int64_t size = input_sizes.empty() ? input.size(0) / size_ : input_sizes[other];
    begins[other + 1] = begins[other] + size;
  }
  communicator_->meet(
      rank_,
      {.call = fmt::format("all_to_all of {}", c10::toString(input.scalar_type())), .input = input, .offsets = begins});
  int64_t row = 0;
  for (int64_t other = 0; other < size_; ++other) {
    const Slot& theirs = communicator_->slot(other);
    const int64_t begin = theirs.offsets[static_cast<size_t>(rank_)];
    const int64_t size = theirs.offsets[static_cast<size_t>(rank_) + 1] - begin;
    const int64_t expected = output_sizes.empty() ? output.size(0) / size_ : output_sizes[static_cast<size_t>(other)];
    if (size != expected) {
      fail_runtime("all_to_all: rank {} sends {} rows to rank {}, which expects {}", other, size, rank_, expected);
    }
    output.narrow(0, row, size).copy_(theirs.input.narrow(0, begin, size));
    row += size;
  }
  communicator_->wait_for_all();
  return done();
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::broadcast(
    std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) {
  const at::NoGradGuard no_grad;
  const at::Tensor& tensor = tensors.front();
  communicator_->meet(rank_, {.call = call_of("broadcast", tensor), .input = tensor});
  if (rank_ != options.rootRank) {
    tensor.copy_(communicator_->slot(options.rootRank).input);
  }
  communicator_->wait_for_all();
  return done();
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::barrier(const c10d::BarrierOptions& /*options*/) {
  communicator_->meet(rank_, {.call = "barrier"});
  communicator_->wait_for_all();
  return done();
}

c10::intrusive_ptr<c10d::Work> ThreadBackend::send(std::vector<at::Tensor>& tensors, int to, int /*tag*/) {
  const NotCounted on_its_way;  // the number of messages in flight depends on timing
  communicator_->post(rank_, to, tensors.front().detach().clone());
  return done();
}

// Blocks in wait(), not at the call, so that two ranks may send to each other.
class Receiving : public c10d::Work {
 public:
  Receiving(std::shared_ptr<ThreadCommunicator> communicator, int64_t from, int64_t to, at::Tensor target)
      : communicator_(std::move(communicator)),
        from_(from),
        to_(to),
        number_(communicator_->expect(from, to)),
        target_(std::move(target)) {}
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    const at::NoGradGuard no_grad;
    const at::Tensor sent = communicator_->take(from_, to_, number_);
    if (sent.scalar_type() != target_.scalar_type() || sent.sizes() != target_.sizes()) {
      fail_runtime(
          "receive: rank {} of the group sent {} [{}], and {} [{}] was expected",
          from_,
          c10::toString(sent.scalar_type()),
          fmt::join(sent.sizes(), ", "),
          c10::toString(target_.scalar_type()),
          fmt::join(target_.sizes(), ", "));
    }
    target_.copy_(sent);
    return true;
  }

 private:
  std::shared_ptr<ThreadCommunicator> communicator_;
  int64_t from_, to_, number_;
  at::Tensor target_;
};

c10::intrusive_ptr<c10d::Work> ThreadBackend::recv(std::vector<at::Tensor>& tensors, int from, int /*tag*/) {
  return c10::make_intrusive<Receiving>(communicator_, from, rank_, tensors.front());
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_thread_backend(std::shared_ptr<ThreadCommunicator> communicator, int64_t rank) {
  return c10::make_intrusive<ThreadBackend>(std::move(communicator), rank);
}

}  // namespace lehr::mesh
