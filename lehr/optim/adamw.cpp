// One fused call per bucket of parameters with equal settings: Lehr's kernels where there are some, else ATen's.
#include "lehr/optim/adamw.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "lehr/optim/adamw_gpu.h"

namespace lehr::optim {

FusedAdam::FusedAdam(const OptimizerConfig& config, const std::vector<std::string>& names)
    : PerParameterOptimizer(config, names, {"exp_avg", "exp_avg_sq"}) {}

template <class Kernel>
void FusedAdam::update_by(
    const Kernel& kernel, const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  const auto scale = grad_scale(items, options);
  kernel(
      values(items),
      grads(items),
      states(items, 0),
      states(items, 1),
      /*max_exp_avg_sqs=*/at::TensorList(),
      steps_taken(items).unbind(),
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

std::vector<AdamWTensors> AdamW::tensors_of(const std::vector<Item>& items) {
  std::vector<AdamWTensors> tensors;
  for (const Item& item : items) {
    tensors.push_back({.value = item.value, .grad = item.grad, .exp_avg = item.state[0], .exp_avg_sq = item.state[1]});
  }
  return tensors;
}

AdamWNumbers AdamW::numbers_of(const GroupSettings& group, const StepOptions& options) {
  return {
      .lr = group.lr * options.lr_factor,
      .beta1 = group.beta1,
      .beta2 = group.beta2,
      .eps = group.eps,
      .weight_decay = group.weight_decay};
}

void AdamW::update_on_cpu(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  const auto scale = grad_scale(items, options);
  if (options.found_inf.defined() && *options.found_inf.const_data_ptr<float>() == 1) {
    return;
  }
  const at::Tensor steps = steps_taken(items);
  std::vector<AdamWTensors> tensors = tensors_of(items);
  for (size_t i = 0; i < items.size(); ++i) {
    tensors[i].step = steps.const_data_ptr<float>()[i];
  }
  AdamWNumbers numbers = numbers_of(group, options);
  numbers.grad_divisor = scale ? *scale->const_data_ptr<float>() : 1;
  adamw_on_cpu_(tensors, numbers);
}

void AdamW::update_on_gpu(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  adamw_on_gpu_(
      tensors_of(items),
      numbers_of(group, options),
      {.steps = steps_taken(items),
       .grad_divisor = grad_scale(items, options).value_or(at::Tensor()),
       .found_inf = options.found_inf});
}

void AdamW::update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  if (supports_adamw_on_cpu(items.front().value)) {
    return update_on_cpu(group, items, options);
  }
  if (supports_adamw_on_gpu(items.front().value)) {
    return update_on_gpu(group, items, options);
  }
  update_by([](const auto&... args) { at::_fused_adamw_(args...); }, group, items, options);
}

void Adam::update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  update_by([](const auto&... args) { at::_fused_adam_(args...); }, group, items, options);
}

}  // namespace lehr::optim
