// One fused ATen call for each bucket of alike parameters.
#include "lehr/optim/adamw.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "lehr/base/side_stream.h"

namespace lehr::optim {

AdamW::AdamW(const OptimizerConfig& config, const std::vector<std::string>& names)
    : PerParameterOptimizer(config, names, {"exp_avg", "exp_avg_sq"}) {}

Adam::Adam(const OptimizerConfig& config, const std::vector<std::string>& names)
    : PerParameterOptimizer(config, names, {"exp_avg", "exp_avg_sq"}) {}

namespace {
// The kernels read each parameter's number of steps from a tensor of its own.
template <class Items>
std::vector<at::Tensor> step_tensors(const Items& items) {
  auto steps = at::empty({static_cast<int64_t>(items.size())}, at::kFloat);
  for (size_t i = 0; i < items.size(); ++i) {
    steps.template data_ptr<float>()[i] = static_cast<float>(items[i].step);
  }
  return to_device_pinned(steps, items.front().value.device()).unbind();
}
}  // namespace

void AdamW::update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  const auto scale = grad_scale(items, options);
  at::_fused_adamw_(
      values(items),
      grads(items),
      states(items, 0),
      states(items, 1),
      /*max_exp_avg_sqs=*/{},
      step_tensors(items),
      group.lr * options.lr_factor,
      group.beta1,
      group.beta2,
      group.weight_decay,
      group.eps,
      /*amsgrad=*/false,
      /*maximize=*/false,
      scale,
      found_inf(options));
}

void Adam::update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  const auto scale = grad_scale(items, options);
  at::_fused_adam_(
      values(items),
      grads(items),
      states(items, 0),
      states(items, 1),
      /*max_exp_avg_sqs=*/{},
      step_tensors(items),
      group.lr * options.lr_factor,
      group.beta1,
      group.beta2,
      group.weight_decay,
      group.eps,
      /*amsgrad=*/false,
      /*maximize=*/false,
      scale,
      found_inf(options));
}

}  // namespace lehr::optim
