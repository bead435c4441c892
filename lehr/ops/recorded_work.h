// Work of a GPU that is recorded once and then given to it in one call, as a CUDA graph: the host need not start its
// kernels one by one.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Recorded work. What it made stays where it is, and each replay reads and writes the same memory.
class RecordedWork {
 public:
  explicit RecordedWork(std::vector<at::Tensor> made) : made_(std::move(made)) {}
  virtual ~RecordedWork() = default;
  RecordedWork(const RecordedWork&) = delete;
  RecordedWork& operator=(const RecordedWork&) = delete;

  /// Gives it to the current stream of the device on which it was recorded. The host does not wait.
  virtual void replay() = 0;
  /// What the work returned: after a replay, with that one's numbers.
  const std::vector<at::Tensor>& made() const { return made_; }

 private:
  std::vector<at::Tensor> made_;
};

/// Work that can be recorded, and returns what shall be looked at afterwards. Undefined tensors may be among it.
using Work = std::function<std::vector<at::Tensor>()>;

/// Records what `work` gives the device, which need not do any of it yet: replay() does. Throws what `work` throws; on
/// a GPU that is an error of CUDA, too, for whatever cannot be recorded, such as looking at a number of a tensor; the
/// process can do no more than say so and end.
using Recorder = std::function<std::unique_ptr<RecordedWork>(const Work& work)>;

/// Whether record_cuda_graph can be called: Lehr's module of CUDA kernels was opened (cuda.h).
bool records_cuda_graphs();
/// A Recorder for the current GPU.
std::unique_ptr<RecordedWork> record_cuda_graph(const Work& work);

}  // namespace lehr::ops
