#include "lehr/train/validate.h"

#include "lehr/base/error.h"
#include "lehr/train/step.h"

namespace lehr::train {

ValidationResult validate(
    nn::Model& model,
    const TrainTask& task,
    BatchStream& stream,
    int64_t max_batches,
    const std::function<bool()>& stop) {
  at::NoGradGuard no_grad;
  const at::Device device = nn::named_parameters(model).front().parameter->value().device();
  struct Mode {  // as it was, whatever happens
    nn::Model& model;
    bool training;
    ~Mode() { model.train(training); }
  } const mode{model, model.is_training()};
  model.eval();
  ValidationResult result;
  double loss = 0;
  int64_t batches = 0;
  while (max_batches <= 0 || batches < max_batches) {
    if (stop && stop()) {
      result.complete = false;
      return result;
    }
    const auto batch = stream.next();
    if (!batch) {
      break;
    }
    ++batches;
    const int64_t valid = task.count_valid(*batch);
    if (valid == 0) {
      continue;
    }
    const Batch local = to_device(*batch, device);
    const nn::ModelOutputs outputs = model.forward(task.build_forward_inputs(local));
    loss += task.compute_loss(outputs, local).to(at::kDouble).item<double>();
    for (const auto& [name, sum] : task.compute_metrics(outputs, local)) {
      result.metrics[name] += sum.to(at::kDouble).item<double>();
    }
    result.valid += valid;
  }
  require(
      result.valid > 0, "validation: the held-out data has no labelled item; hold out more (data.validation_fraction)");
  result.loss = loss / static_cast<double>(result.valid);
  for (auto& [name, value] : result.metrics) {
    value /= static_cast<double>(result.valid);
  }
  return result;
}

}  // namespace lehr::train
