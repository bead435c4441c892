// Assignment of parameters to groups with the same hyperparameters.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/optim/optimizer_config.h"

namespace lehr::optim {

/// The hyperparameters of one group, with all defaults filled in.
struct GroupSettings {
  std::string pattern = {};  ///< Empty for the default group.
  double lr = 0;             ///< Before the schedule's factor.
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  int64_t parameters = 0;  ///< Number of parameters in the group.
};

/// Returns the learning rate of a group of `config`, before the schedule's factor.
double learning_rate(const OptimizerConfig& config, const ParameterGroupConfig& group);

/// Assigns every parameter to the first group whose pattern matches its name, else to the default group.
class ParameterGroups {
 public:
  /// `names` are the trained parameters of the whole model, in all pipeline stages, so that all ranks check patterns
  /// alike. Throws a usage error for an invalid regular expression, and for a pattern to which no name is assigned.
  ParameterGroups(const OptimizerConfig& config, const std::vector<std::string>& names);

  /// Returns the groups in the order of the config, the default group last.
  const std::vector<GroupSettings>& groups() const { return groups_; }
  /// Returns the index in groups(). Throws a usage error for a name that was not passed to the constructor.
  size_t group_of(const std::string& name) const;

 private:
  std::vector<GroupSettings> groups_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace lehr::optim
