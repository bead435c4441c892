// Which numbers of the optimizer hold for which parameter.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "lehr/optim/optimizer_config.h"

namespace lehr::optim {

/// The numbers of one group of parameters, with everything filled in.
struct GroupSettings {
  std::string pattern = {};  ///< Empty for the default group.
  double lr = 0;             ///< Before the schedule's factor.
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  int64_t parameters = 0;  ///< How many names are in it.
};

/// Every parameter name in exactly one group: the first whose pattern is found in the name, else the default group.
class ParameterGroups {
 public:
  /// `names` are the trained parameters of the whole model, in all pipeline stages, so that a pattern is judged alike
  /// on every rank. Throws a usage error for a pattern that does not parse, and for one that no name falls to.
  ParameterGroups(const OptimizerConfig& config, const std::vector<std::string>& names);

  /// In the order of the config, the default group last.
  const std::vector<GroupSettings>& groups() const { return groups_; }
  /// Index into groups(). Throws a usage error for a name that was not among those of the constructor.
  size_t group_of(const std::string& name) const;

 private:
  std::vector<GroupSettings> groups_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace lehr::optim
