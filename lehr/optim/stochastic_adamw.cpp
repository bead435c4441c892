#include "lehr/optim/stochastic_adamw.h"

#include "lehr/base/error.h"
#include "lehr/optim/stochastic_rounding.h"

namespace lehr::optim {

StochasticAdamW::StochasticAdamW(const OptimizerConfig& config, const std::vector<std::string>& names, uint64_t seed)
    : PerParameterOptimizer(config, names, {"exp_avg", "exp_avg_sq"}),
      seed_(seed),
      state_type_(config.state_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat) {}

void StochasticAdamW::check_parameter(const NamedParameter& parameter) const {
  require(
      parameter.value.scalar_type() == at::kBFloat16,
      "{}: stochastic_adamw updates bfloat16 parameters, found {}; set training.dtype = \"bfloat16\", or use adamw",
      parameter.name,
      describe(parameter.value));
}

void StochasticAdamW::update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) {
  std::vector<StochasticAdamWStep> steps;
  for (const auto& item : items) {
    const std::string& name = item.parameter->name;
    steps.push_back(
        {.tensors =
             {.value = item.value,
              .grad = item.grad,
              .exp_avg = item.state[0],
              .exp_avg_sq = item.state[1],
              .placement = item.parameter->placement},
         .numbers =
             {.lr = group.lr * options.lr_factor,
              .beta1 = group.beta1,
              .beta2 = group.beta2,
              .eps = group.eps,
              .weight_decay = group.weight_decay,
              .step = item.step},
         .noise = {
             .value = rounding_noise(seed_, item.step, name),
             .exp_avg = rounding_noise(seed_, item.step, name + ".exp_avg"),
             .exp_avg_sq = rounding_noise(seed_, item.step, name + ".exp_avg_sq")}});
  }
  stochastic_adamw_(steps, {.grad_divisor = options.grad_divisor, .found_inf = options.found_inf});
}

}  // namespace lehr::optim
