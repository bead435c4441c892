#include "lehr/mesh/gloo_backend.h"

namespace lehr::mesh {

namespace {
// Chunks that are on their way from all ranks, and their sum, which the first successful wait() makes.
class SumOfChunks : public c10d::Work {
 public:
  SumOfChunks(c10::intrusive_ptr<c10d::Work> arrival, at::Tensor chunks, at::Tensor output)
      : arrival_(std::move(arrival)), chunks_(std::move(chunks)), output_(std::move(output)) {}

  bool isCompleted() override { return arrival_->isCompleted(); }
  bool isSuccess() const override { return arrival_->isSuccess(); }
  std::exception_ptr exception() const override { return arrival_->exception(); }
  void abort() override { arrival_->abort(); }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool arrived = arrival_->wait(timeout);
    if (arrived && chunks_.defined()) {
      const at::NoGradGuard no_grad;
      output_.copy_(chunks_[0]);
      for (int64_t rank = 1; rank < chunks_.size(0); ++rank) {
        output_.add_(chunks_[rank]);
      }
      chunks_.reset();
      output_.reset();
    }
    return arrived;
  }

 private:
  c10::intrusive_ptr<c10d::Work> arrival_;
  at::Tensor chunks_;  // (ranks, elements of one)
  at::Tensor output_;
};
}  // namespace

c10::intrusive_ptr<c10d::Work> GlooBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  if (options.reduceOp != c10d::ReduceOp::SUM) {
    return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
  }
  at::Tensor sent = input.view({getSize(), -1});
  at::Tensor chunks = at::empty_like(sent);
  std::vector<int64_t> even;  // all ranks get as much
  auto arrival = alltoall_base(chunks, sent, even, even);
  return c10::make_intrusive<SumOfChunks>(std::move(arrival), chunks, output.view(-1));
}

void GlooBackend::disconnect() noexcept {
  try {
    for (const auto& context : contexts_) {
      context->closeConnections();
    }
  } catch (const std::exception&) {
    // Another thread did it.
  }
}

}  // namespace lehr::mesh
