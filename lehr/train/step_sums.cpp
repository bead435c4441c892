#include "lehr/train/step_sums.h"

#include "lehr/base/error.h"

namespace lehr::train {

void StepSums::add_routers(const nn::RouterLosses& routers, double share) {
  if (!routers.z_loss().defined() || routers.z_loss().is_meta()) {
    return;  // all layers of a model of experts are dense, or a plan
  }
  const at::NoGradGuard no_grad;
  const auto add_to = [&](at::Tensor& sum, const at::Tensor& addend) {
    const at::Tensor part = addend.detach().to(at::kDouble) * share;
    sum = sum.defined() ? sum + part : part;
  };
  add_to(load_balancing, routers.load_balancing_loss());
  add_to(router_z, routers.z_loss());
}

void StepSums::add(const at::Tensor& batch_loss, const std::map<std::string, at::Tensor>& batch_metrics) {
  at::NoGradGuard no_grad;
  loss = loss.defined() ? loss + batch_loss.detach() : batch_loss.detach();
  for (const auto& [name, sum] : batch_metrics) {
    at::Tensor& total = metrics[name];
    total = total.defined() ? total + sum : sum;
  }
}

at::Tensor pack_numbers(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  at::Device device = at::kCPU;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      device = tensor.device();
      break;
    }
  }
  std::vector<at::Tensor> numbers;
  for (const at::Tensor& tensor : tensors) {
    numbers.push_back(
        tensor.defined() ? tensor.detach().to(device, at::kDouble).reshape({})
                         : at::zeros({}, at::TensorOptions(device).dtype(at::kDouble)));
  }
  return numbers.empty() ? at::empty({0}, at::kDouble) : at::stack(numbers);
}

std::map<std::string, at::Tensor> compute_metrics(
    const TrainTask& task, const nn::ModelOutputs& outputs, const Batch& batch) {
  at::NoGradGuard no_grad;
  auto sums = task.compute_metrics(outputs, batch);
  for (const auto& [name, sum] : sums) {
    require(
        sum.defined() && sum.numel() == 1,
        "metric {}: expected one number, found {}; give each of several a name of its own",
        name,
        sum.defined() ? std::to_string(sum.numel()) : "nothing");
  }
  return sums;
}

}  // namespace lehr::train
