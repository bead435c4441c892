// Sorts parameter names into groups by their patterns.
#include "lehr/optim/parameter_groups.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/name_pattern.h"

namespace lehr::optim {

double learning_rate(const OptimizerConfig& config, const ParameterGroupConfig& group) {
  return group.lr.value_or(config.lr * group.lr_multiplier);
}

ParameterGroups::ParameterGroups(const OptimizerConfig& config, const std::vector<std::string>& names) {
  Problems problems;
  config.check(problems);
  if (!problems.empty()) {
    fail("{}: {}", problems.items().front().key, problems.items().front().message);
  }
  std::vector<NamePattern> patterns;
  for (const auto& group : config.param_groups) {
    patterns.emplace_back(group.pattern);
    groups_.push_back(
        {.pattern = group.pattern,
         .lr = learning_rate(config, group),
         .beta1 = group.beta1.value_or(config.beta1),
         .beta2 = group.beta2.value_or(config.beta2),
         .eps = group.eps.value_or(config.eps),
         .weight_decay = group.weight_decay.value_or(config.weight_decay_or_default())});
  }
  groups_.push_back(
      {.pattern = "",
       .lr = config.lr,
       .beta1 = config.beta1,
       .beta2 = config.beta2,
       .eps = config.eps,
       .weight_decay = config.weight_decay_or_default()});

  std::vector<bool> found(patterns.size(), false);
  for (const auto& name : names) {
    size_t chosen = patterns.size();
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (patterns[i].matches_part(name)) {
        found[i] = true;
        chosen = std::min(chosen, i);
      }
    }
    require(index_.emplace(name, chosen).second, "{}: two parameters have this name", name);
    ++groups_[chosen].parameters;
  }
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (groups_[i].parameters == 0) {
      fail(
          "optimizer.param_groups.{}.pattern: \"{}\" {}; {}",
          i,
          groups_[i].pattern,
          found[i] ? "gets no parameter, as earlier groups take all that it matches"
                   : "matches no parameter that is trained",
          names.empty()
              ? "the model has none"
              : fmt::format("the first one is \"{}\"; correct the pattern, or remove the group", names.front()));
    }
  }
}

size_t ParameterGroups::group_of(const std::string& name) const {
  const auto it = index_.find(name);
  require(it != index_.end(), "{}: the optimizer was not built for this parameter", name);
  return it->second;
}

}  // namespace lehr::optim
