#include "lehr/train/step_sums.h"

#include "lehr/base/error.h"

namespace lehr::train {

void StepSums::add_routers(const nn::RouterLosses& routers, double share) {
  if (routers.z_loss().is_meta()) {
    return;
  }
  load_balancing += share * routers.load_balancing_loss().item<double>();
  router_z += share * routers.z_loss().item<double>();
}

void StepSums::add(const at::Tensor& batch_loss, const std::map<std::string, at::Tensor>& batch_metrics) {
  at::NoGradGuard no_grad;
  loss = loss.defined() ? loss + batch_loss.detach() : batch_loss.detach();
  for (const auto& [name, sum] : batch_metrics) {
    at::Tensor& total = metrics[name];
    total = total.defined() ? total + sum : sum;
  }
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
