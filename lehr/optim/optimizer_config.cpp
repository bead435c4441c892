// Fields and rules of the section `[optimizer]`.
#include "lehr/optim/optimizer_config.h"

#include <fmt/format.h>

#include <regex>

namespace lehr::optim {

void ParameterGroupConfig::fields(FieldVisitor& v) {
  v.required(
      "pattern",
      pattern,
      "Regular expression (ECMAScript) searched for in parameter names, as \"norm\\\\.weight$\"; the first group "
      "wins.");
  v.optional("lr_multiplier", lr_multiplier, "Multiple of optimizer.lr for this group.", at_least(0));
  v.optional("lr", lr, "Learning rate of this group, instead of a multiple.", at_least(0));
  v.optional("beta1", beta1, "Decay of the first moment; optimizer.beta1 unless given.", from_below(0, 1));
  v.optional("beta2", beta2, "Decay of the second moment; optimizer.beta2 unless given.", from_below(0, 1));
  v.optional("eps", eps, "Added to the root of the second moment; optimizer.eps unless given.", at_least(0));
  v.optional("weight_decay", weight_decay, "Decoupled weight decay; optimizer.weight_decay unless given.", at_least(0));
}

void OptimizerConfig::fields(FieldVisitor& v) {
  v.optional("name", name, "The optimizer.", one_of({"AdamW"}));
  v.optional("lr", lr, "Base learning rate; [lr_scheduler] multiplies it.", at_least(0));
  v.optional("beta1", beta1, "Decay of the running mean of gradients.", from_below(0, 1));
  v.optional("beta2", beta2, "Decay of the running mean of squared gradients.", from_below(0, 1));
  v.optional("eps", eps, "Added to the root of the second moment.", at_least(0));
  v.optional("weight_decay", weight_decay, "Decoupled weight decay, on every parameter.", at_least(0));
  v.list("param_groups", param_groups, "Parameters with numbers of their own, by name.");
}

void OptimizerConfig::check(Problems& problems) const {
  for (size_t i = 0; i < param_groups.size(); ++i) {
    const auto& group = param_groups[i];
    const auto key = [i](const char* field) { return fmt::format("optimizer.param_groups.{}.{}", i, field); };
    if (group.lr && group.lr_multiplier != 1.0) {
      problems.add(key("lr"), "stands beside lr_multiplier; give one of the two");
    }
    try {
      const std::regex compiled(group.pattern);
    } catch (const std::regex_error& error) {
      problems.add(key("pattern"), fmt::format("\"{}\" is not a regular expression: {}", group.pattern, error.what()));
    }
  }
}

}  // namespace lehr::optim
