#include "lehr/emulate/recording_transport.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>

namespace lehr::emulate {

namespace {
class RecordedWork : public c10d::Work {
 public:
  RecordedWork(Recorder& recorder, size_t call) : recorder_(recorder), call_(call) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    recorder_.wait(call_);
    return true;
  }

 private:
  Recorder& recorder_;
  size_t call_;
};

class RecordingBackend : public c10d::Backend {
 public:
  using Works = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  RecordingBackend(Channel group, c10::intrusive_ptr<c10d::Backend> hosts, Recorder& recorder)
      : c10d::Backend(hosts->getRank(), hosts->getSize()),
        group_(std::move(group)),
        hosts_(std::move(hosts)),
        recorder_(recorder) {}

  const std::string getBackendName() const override { return "emulated"; }

  Works allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const bool sums = options.reduceOp == c10d::ReduceOp::SUM;
    return tensors.front().is_meta() ? start(sums ? "all_reduce" : "all_reduce_max", tensors.front())
                                     : hosts_->allreduce(tensors, options);
  }
  Works _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return input.is_meta() ? start("all_gather", input) : hosts_->_allgather_base(output, input, options);
  }
  Works _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return input.is_meta() ? start("reduce_scatter", input) : hosts_->_reduce_scatter_base(output, input, options);
  }
  Works alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_sizes,
      std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    return input.is_meta() ? start("all_to_all", input)
                           : hosts_->alltoall_base(output, input, output_sizes, input_sizes, options);
  }
  Works broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return tensors.front().is_meta() ? start("broadcast", tensors.front()) : hosts_->broadcast(tensors, options);
  }
  Works barrier(const c10d::BarrierOptions& options) override { return hosts_->barrier(options); }
  Works send(Tensors& tensors, int to, int tag) override {
    return tensors.front().is_meta() ? message("send", tensors.front(), getRank(), to) : hosts_->send(tensors, to, tag);
  }
  Works recv(Tensors& tensors, int from, int tag) override {
    return tensors.front().is_meta() ? message("receive", tensors.front(), from, getRank())
                                     : hosts_->recv(tensors, from, tag);
  }

 private:
  Works start(const char* collective, const at::Tensor& input) { return start(group_, collective, input); }
  Works start(const Channel& channel, const char* collective, const at::Tensor& input) {
    const size_t call = recorder_.start(channel, collective, static_cast<int64_t>(input.nbytes()));
    return c10::make_intrusive<RecordedWork>(recorder_, call);
  }
  Works message(const char* name, const at::Tensor& tensor, int from, int to) {
    const auto rank_at = [&](int index) { return group_.ranks.at(static_cast<size_t>(index)); };
    return start({.axes = group_.axes, .ranks = {rank_at(from), rank_at(to)}, .message = true}, name, tensor);
  }

  Channel group_;
  c10::intrusive_ptr<c10d::Backend> hosts_;
  Recorder& recorder_;
};

class RecordingTransport : public mesh::Transport {
 public:
  RecordingTransport(mesh::Transport& hosts, Recorder& recorder) : hosts_(hosts), recorder_(recorder) {}
  int64_t rank() const override { return hosts_.rank(); }
  int64_t world_size() const override { return hosts_.world_size(); }
  std::string name() const override { return "emulated"; }
  at::Device device() const override { return at::kMeta; }
  c10::intrusive_ptr<c10d::Backend> connect(const std::string& group, const std::vector<int64_t>& ranks) override {
    return c10::make_intrusive<RecordingBackend>(
        Channel{.axes = group, .ranks = ranks}, hosts_.connect(group, ranks), recorder_);
  }
  c10::intrusive_ptr<c10d::Store> store() override { return hosts_.store(); }
  void abort(const std::string& message) noexcept override { hosts_.abort(message); }
  void check() override { hosts_.check(); }

 private:
  mesh::Transport& hosts_;
  Recorder& recorder_;
};
}  // namespace

std::unique_ptr<mesh::Transport> recording_transport(mesh::Transport& hosts, Recorder& recorder) {
  return std::make_unique<RecordingTransport>(hosts, recorder);
}

}  // namespace lehr::emulate
