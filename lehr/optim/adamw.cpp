// One fused ATen call per bucket of parameters with equal settings.
#include "lehr/optim/adamw.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

namespace lehr::optim {

AdamW::AdamW(const OptimizerConfig& config, const std::vector<std::string>& names)
    : PerParameterOptimizer(config, names, {"exp_avg", "exp_avg_sq"}) {}

Adam::Adam(const OptimizerConfig& config, const std::vector<std::string>& names)
    : PerParameterOptimizer(config, names, {"exp_avg", "exp_avg_sq"}) {}

void AdamW::update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  const auto scale = grad_scale(items, options);
  at::_fused_adamw_(
      values(items),
      grads(items),
      states(items, 0),
      states(items, 1),
      /*max_exp_avg_sqs=*/{},
      steps_taken(items),
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
      steps_taken(items),
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
