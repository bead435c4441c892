// GPU work that is recorded (captured) once as a CUDA graph and then replayed in one call, so the host need not launch
// its kernels one by one.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/memory/side_stream.h"
#include "lehr/ops/cuda/graph_functions.h"

namespace lehr::ops {

/// Recorded work. Its results stay at their addresses: each replay reads and writes the same memory.
class RecordedWork {
 public:
  explicit RecordedWork(std::vector<at::Tensor> made) : made_(std::move(made)) {}
  virtual ~RecordedWork() = default;
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;

  /// Enqueues it on the current stream of the device on which it was recorded. The host does not wait.
  virtual void replay() = 0;
  /// The tensors that the work returned. After a replay they hold the results of that replay.
  const std::vector<at::Tensor>& made() const { return made_; }

 private:
  std::vector<at::Tensor> made_;
};

/// A function that can be recorded and returns its results. These may include undefined tensors.
using Work = std::function<std::vector<at::Tensor>()>;

/// Records work.
class WorkRecorder {
 public:
  virtual ~WorkRecorder() = default;
  /// Runs, on the stream of the recording, work that will be recorded later. State that libraries and autograd keep per
  /// stream (cuBLAS's workspace, the nodes that accumulate gradients) is thus created outside of the recording.
  virtual void warm_up(const std::function<void()>& work) = 0;
  /// Records the device work that `work` enqueues, which need not be executed yet: replay() executes it. Throws what
  /// `work` throws; on a GPU that includes an error of CUDA for work that cannot be recorded, such as reading a value
  /// of a tensor. During that time other threads may enqueue work outside of the recording, but not with random numbers
  /// of LibTorch's generator.
  virtual std::unique_ptr<RecordedWork> record(const Work& work) = 0;
};
using Recorder = std::shared_ptr<WorkRecorder>;

/// Records graphs of one device. Warm-ups and recordings run on one side stream. It first waits for the current stream,
/// which waits for it afterwards.
class GraphRecorder final : public WorkRecorder {
 public:
  /// `functions` must outlive all recordings.
  GraphRecorder(std::shared_ptr<DeviceQueues> queues, const cuda::GraphFunctions& functions);
  void warm_up(const std::function<void()>& work) override;
  std::unique_ptr<RecordedWork> record(const Work& work) override;

 private:
  const cuda::GraphFunctions& functions_;
  SideStream stream_;
};

/// True if make_cuda_recorder can be called: Lehr's module of CUDA kernels was opened (cuda.h).
bool records_cuda_graphs();
/// Returns a recorder for a GPU.
Recorder make_cuda_recorder(at::Device device);

}  // namespace lehr::ops
