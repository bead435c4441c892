#include "lehr/train/validate.h"

#include <set>

#include "lehr/base/error.h"
#include "lehr/nn/module.h"
#include "lehr/train/ranks.h"

namespace lehr::train {

ValidationResult validate(
    nn::Model& model, const TrainTask& task, BatchStream& stream, const ValidateOptions& options) {
  at::NoGradGuard no_grad;
  const Ranks one_device;
  const Ranks& ranks = options.ranks != nullptr ? *options.ranks : one_device;
  const at::Device device = options.device.value_or(nn::named_parameters(model).front().parameter->value().device());
  struct Mode {  // restored on every exit path
    nn::Model& model;
    bool training;
    ~Mode() { model.train(training); }
  } const mode{model, model.is_training()};
  model.eval();
  // One rank of context parallelism counts the items of whole sequences.
  const bool counts = ranks.context() == nullptr || ranks.context()->index(mesh::axis::cp) == 0;
  std::vector<double> sums(2);  // valid items, loss, metrics in the order of names
  std::set<std::string> names;
  while (true) {
    if (options.stop && ranks.any(options.stop())) {
      return {.complete = false};
    }
    const auto batch = stream.next();
    if (!batch) {
      break;
    }
    // A rank whose sequences are all padding still takes part in the collectives.
    const Batch local = to_device(ranks.positions_of(*batch), device);
    const int64_t valid = task.count_valid(*batch);  // of whole sequences
    if (valid == 0 && ranks.world_size() == 1) {
      continue;
    }
    const nn::ModelOutputs outputs = model.forward(task.build_forward_inputs(local));
    sums[0] += counts ? static_cast<double>(valid) : 0;
    sums[1] += task.compute_loss(outputs, local).to(at::kDouble).item<double>();
    size_t place = 2;
    for (const auto& [name, sum] : task.compute_metrics(outputs, local)) {
      names.insert(name);
      sums.resize(std::max(sums.size(), place + 1));
      sums[place++] += sum.to(at::kDouble).item<double>();
    }
  }
  ranks.sum_over_tokens(sums);
  ValidationResult result{.valid = static_cast<int64_t>(sums[0])};
  require(
      result.valid > 0, "validation: the held-out data has no labelled item; hold out more (data.validation_fraction)");
  result.loss = sums[1] / sums[0];
  size_t place = 2;
  for (const auto& name : names) {
    result.metrics[name] = sums[place++] / sums[0];
  }
  return result;
}

}  // namespace lehr::train
