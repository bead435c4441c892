// The loss and the data of a run as Python functions.
#include <fmt/ranges.h>

#include <set>

#include "lehr/base/error.h"
#include "python/module/trainer.h"

namespace lehr::python {

namespace {
at::Tensor take_required(const NamedTensors& tensors, const char* name, const char* function) {
  require(tensors.contains(name), "{}: returned no '{}'", function, name);
  return tensors.at(name);
}

class OwnLoss : public train::TrainTask {
 public:
  OwnLoss(std::unique_ptr<train::TrainTask> task, const Callback& loss, c10::intrusive_ptr<Exchange> exchange)
      : task_(std::move(task)), loss_(loss), exchange_(std::move(exchange)) {}

  nn::ModelInputs build_forward_inputs(const train::Batch& batch) const override {
    return task_->build_forward_inputs(batch);
  }
  int64_t count_valid(const train::Batch& batch) const override { return task_->count_valid(batch); }
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const train::Batch& batch) const override {
    NamedTensors given;
    for (const auto& [name, tensor] : outputs.to_dict()) {
      given.insert(name == "logps" ? "nll" : name, tensor);
    }
    for (const auto& [name, tensor] : batch) {
      given.insert("batch." + name, tensor);
    }
    exchange_->put(given);
    loss_(0);
    const at::Tensor loss = take_required(exchange_->take(), "loss", "loss");
    require(
        loss.dim() == 0 && (loss.requires_grad() || !at::GradMode::is_enabled()),
        "loss: expected a scalar that depends on the model's outputs, the sum over the valid items; found {} "
        "dimensions, requires_grad = {}",
        loss.dim(),
        loss.requires_grad());
    if (!outputs.future_nll.defined()) {
      return loss;
    }
    // What the task adds to the cross-entropy: the gradient of multi-token prediction.
    return loss + (task_->compute_loss(outputs, batch) - outputs.nll().sum());
  }
  std::map<std::string, at::Tensor> compute_metrics(
      const nn::ModelOutputs& outputs, const train::Batch& batch) const override {
    return task_->compute_metrics(outputs, batch);
  }
  void use_mesh(mesh::DistributedContext& mesh) override { task_->use_mesh(mesh); }
  bool couples_sequences() const override { return task_->couples_sequences(); }

 private:
  std::unique_ptr<train::TrainTask> task_;
  Callback loss_;
  c10::intrusive_ptr<Exchange> exchange_;
};

const std::set<std::string> kNames{"input_ids", "labels", "position_ids", "document_ids"};

class OwnBatches : public train::BatchStream {
 public:
  OwnBatches(const Callback& data, c10::intrusive_ptr<Exchange> exchange, int64_t rows, int64_t seq_len, int64_t step)
      : data_(data), exchange_(std::move(exchange)), shape_{rows, seq_len}, step_(step) {}

  std::optional<train::Batch> next() override {
    data_(step_++);
    train::Batch batch;
    for (const auto& entry : exchange_->take()) {
      require(
          kNames.contains(entry.key()),
          "data: returned '{}', which is unknown; expected input_ids, labels, position_ids or document_ids",
          entry.key());
      const at::Tensor tensor = entry.value().cpu();
      require(
          tensor.scalar_type() == at::kLong && tensor.sizes() == at::IntArrayRef(shape_),
          "data: {}: expected int64 of shape ({}, {}), which are training.global_batch_size and training.seq_len; "
          "found {} of {}",
          entry.key(),
          shape_[0],
          shape_[1],
          c10::toString(tensor.scalar_type()),
          fmt::format("{}", fmt::join(tensor.sizes(), ", ")));
      batch[entry.key()] = tensor;
    }
    for (const char* name : {"input_ids", "labels", "position_ids"}) {
      require(batch.contains(name), "data: returned no '{}'", name);
    }
    return batch;
  }

 private:
  Callback data_;
  c10::intrusive_ptr<Exchange> exchange_;
  std::vector<int64_t> shape_;
  int64_t step_;
};
}  // namespace

std::unique_ptr<train::TrainTask> own_loss(
    std::unique_ptr<train::TrainTask> task, const Callback& loss, c10::intrusive_ptr<Exchange> exchange) {
  return std::make_unique<OwnLoss>(std::move(task), loss, std::move(exchange));
}

train::RunData own_data(
    const train::TrainConfig& config, const Callback& data, const c10::intrusive_ptr<Exchange>& exchange) {
  require(
      !train::reads_whole_texts(config.training.task),
      "training.task: a Python data source yields tokens and labels per token, so expected causal_lm or sft");
  train::RunData opened;
  opened.train = [=, seq_len = config.training.seq_len](const train::RowShare& rows, int64_t start) {
    require(
        start % rows.global == 0,
        "data: a Python data source is a function of the step, but the {} sequences that were read are no whole number "
        "of steps of {} (training.global_batch_size)",
        start,
        rows.global);
    return std::make_unique<OwnBatches>(data, exchange, rows.global, seq_len, start / rows.global);
  };
  opened.train_once = [](const train::RowShare&, std::optional<int64_t>) -> std::unique_ptr<train::BatchStream> {
    fail("data: a Python data source has no end");
  };
  return opened;
}

}  // namespace lehr::python
