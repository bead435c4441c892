// Forward and backward of a batch as recorded work (training.cuda_graphs).
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

/// Throws a usage error, naming training.cuda_graphs, for a run whose batches cannot be recorded: without a GPU, on
/// several ranks, with experts, with classes or with dropout.
void check_cuda_graphs(const TrainConfig& config, at::Device device, int64_t ranks, bool has_experts);

/// Runs forward and backward of batches; those of a shape that came before, from a recording. What is recorded must not
/// depend on anything but its two inputs and the values of parameters, which must stay where they are.
class StepGraph {
 public:
  /// What a batch gives beside the gradients.
  struct Sums {
    at::Tensor loss;
    std::map<std::string, at::Tensor> metrics;
  };
  /// Leaves the gradients of a batch at the parameters, which have none before. `valid`: the step's valid items, one
  /// float64 on the batch's device.
  using Run = std::function<Sums(const Batch& batch, const at::Tensor& valid)>;

  StepGraph(std::vector<nn::NamedParameter> parameters, ops::Recorder record, Run run);

  /// As Run, on a batch of which all tensors are on one device; adds to the gradients that are there. If the batch is
  /// the `only` one of the step, they may be memory of the recording, which the next replay writes to. Throws a usage
  /// error for what cannot be recorded.
  Sums operator()(const Batch& batch, int64_t valid, bool only);

 private:
  // Batches of one shape are run so often before they are recorded: libraries settle, and what happens once is over.
  static constexpr int kWarmups = 2;
  // Recordings hold the memory of a step each; other shapes run plainly.
  static constexpr int kMostShapes = 2;

  struct Shape {
    int runs = 0;
    Batch batch;
    at::Tensor valid;
    std::vector<std::string> metrics;
    std::unique_ptr<ops::RecordedWork> recorded;  // makes the loss, the metrics and the gradients
  };
  std::vector<at::Tensor> take_gradients() const;
  Sums run_plainly(const Batch& batch, int64_t valid);
  void record(Shape& shape, const Batch& batch);

  std::vector<nn::NamedParameter> parameters_;
  ops::Recorder record_;
  Run run_;
  std::map<std::string, Shape> shapes_;
  int recordings_ = 0;
};

}  // namespace lehr::train
