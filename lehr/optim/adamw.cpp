// One fused call per bucket of parameters with equal settings: Lehr's kernel on the CPU, else ATen's.
#include "lehr/optim/adamw.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "lehr/optim/adamw_cpu.h"

namespace lehr::optim {

AdamW::AdamW(const OptimizerConfig& config, const std::vector<std::string>& names)
    : PerParameterOptimizer(config, names, {"exp_avg", "exp_avg_sq"}) {}

Adam::Adam(const OptimizerConfig& config, const std::vector<std::string>& names)
    : PerParameterOptimizer(config, names, {"exp_avg", "exp_avg_sq"}) {}

void AdamW::update_on_cpu(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  const auto scale = grad_scale(items, options);
  if (options.found_inf.defined() && *options.found_inf.const_data_ptr<float>() == 1) {
    return;
  }
  const std::vector<at::Tensor> steps = steps_taken(items);
  std::vector<AdamWTensors> tensors;
  for (size_t i = 0; i < items.size(); ++i) {
    tensors.push_back(
        {.value = items[i].value,
         .grad = items[i].grad,
         .exp_avg = items[i].state[0],
         .exp_avg_sq = items[i].state[1],
         .step = *steps[i].const_data_ptr<float>()});
  }
  adamw_on_cpu_(
      tensors,
      {.lr = group.lr * options.lr_factor,
       .beta1 = group.beta1,
       .beta2 = group.beta2,
       .eps = group.eps,
       .weight_decay = group.weight_decay,
       .grad_divisor = scale ? *scale->const_data_ptr<float>() : 1});
}

void AdamW::update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  if (supports_adamw_on_cpu(items.front().value)) {
    return update_on_cpu(group, items, options);
  }
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
