// The section `[optimizer]`: which optimizer, its numbers, and which parameters get other numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/fields.h"

namespace lehr::optim {

/// `[[optimizer.param_groups]]`: parameters whose name the pattern is found in. What is left out is the optimizer's.
struct ParameterGroupConfig {
  std::string pattern = {};
  double lr_multiplier = 1.0;
  std::optional<double> lr = {};
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};

  void fields(FieldVisitor& v);
};

/// The section `[optimizer]`. Weight decay is decoupled and hits every parameter, norms and embeddings too, unless a
/// group says otherwise.
struct OptimizerConfig {
  std::string name = "AdamW";
  double lr = 8e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::vector<ParameterGroupConfig> param_groups = {};

  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
};

}  // namespace lehr::optim
