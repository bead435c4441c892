// Forward and backward of a batch as a CUDA graph (training.cuda_graphs).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lehr/nn/model.h"
#include "lehr/ops/recorded_work.h"
#include "lehr/train/task.h"

namespace lehr::train {

struct TrainConfig;

/// Throws a usage error that names training.cuda_graphs for a run whose batches cannot be recorded: without a GPU, on
/// several ranks, with experts, for classification, with dropout, or with parameters in host memory.
void check_cuda_graphs(const TrainConfig& config, at::Device device, int64_t ranks, bool has_experts);

/// Runs forward and backward of batches. From the third batch of a shape on, it replays a recording. The recorded work
/// may depend only on its two inputs and on the values of parameters, which must stay at their addresses.
class StepGraph {
 public:
  /// The results of a batch, besides the gradients.
  struct Sums {
    at::Tensor loss;
    std::map<std::string, at::Tensor> metrics;
  };
  /// Runs a batch and leaves its gradients at the parameters, which have none before. `valid` is the number of valid
  /// items of the step, one float64 on the batch's device.
  using Run = std::function<Sums(const Batch& batch, const at::Tensor& valid)>;

  StepGraph(std::vector<nn::NamedParameter> parameters, ops::Recorder recorder, Run run);

  /// Runs a batch whose tensors are all on one device, and adds to existing gradients. If the batch is the `only` one
  /// of the step, the gradients may be memory of the recording. A gradient that a caller keeps stays valid: the next
  /// call moves it to memory of its own before the recording overwrites it. Throws a usage error for work that cannot
  /// be recorded.
  Sums operator()(const Batch& batch, int64_t valid, bool only);

 private:
  // Number of batches of one shape that run unrecorded, on the stream of the recording, before it is recorded:
  // libraries allocate their workspaces, and one-time work is done.
  static constexpr int kWarmups = 2;
  // Each recording holds the memory of a step; batches of further shapes run unrecorded.
  static constexpr int kMostShapes = 2;

  struct Shape {
    int runs = 0;
    Batch batch;
    at::Tensor valid;
    std::vector<std::string> metrics;
    std::unique_ptr<ops::RecordedWork> recorded;  // computes the loss, the metrics and the gradients
  };
  // Memory of a recording that was exposed as a tensor, which a caller may keep.
  struct Lent {
    at::Tensor memory;
    c10::weak_intrusive_ptr<c10::StorageImpl> shown;
  };
  at::Tensor lend(const at::Tensor& memory);
  void end_loans();
  std::vector<at::Tensor> take_gradients() const;
  Sums run_eagerly(const Batch& batch, int64_t valid);
  void record(Shape& shape, const Batch& batch);

  std::vector<nn::NamedParameter> parameters_;
  ops::Recorder recorder_;
  Run run_;
  std::map<std::string, Shape> shapes_;
  std::vector<Lent> lent_;
  int recordings_ = 0;
};

}  // namespace lehr::train
