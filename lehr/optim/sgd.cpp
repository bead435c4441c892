#include "lehr/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

namespace lehr::optim {

SGD::SGD(const OptimizerConfig& config, const std::vector<std::string>& names)
    : PerParameterOptimizer(
          config,
          names,
          config.momentum.value_or(0) > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{}),
      momentum_(config.momentum.value_or(0)),
      dampening_(config.dampening),
      nesterov_(config.nesterov.value_or(false)) {}

void SGD::update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  const auto scale = grad_scale(items, options);
  std::vector<Item> first;
  std::vector<Item> later;
  for (const auto& item : items) {
    (item.step == 1 ? first : later).push_back(item);
  }
  for (const auto& part : {first, later}) {
    if (!part.empty()) {
      at::_fused_sgd_(
          values(part),
          grads(part),
          momentum_ > 0 ? states(part, 0) : std::vector<at::Tensor>{},
          group.weight_decay,
          momentum_,
          group.lr * options.lr_factor,
          dampening_,
          nesterov_,
          /*maximize=*/false,
          /*is_first_step=*/part.front().step == 1,
          scale,
          found_inf(options));
    }
  }
}

}  // namespace lehr::optim
