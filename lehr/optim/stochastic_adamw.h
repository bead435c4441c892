// AdamW for bfloat16 parameters without float32 master weights.
#pragma once

#include <string>
#include <vector>

#include "lehr/optim/per_parameter.h"

namespace lehr::optim {

/// AdamW in float32 that rounds the new bfloat16 values stochastically (see stochastic_rounding.h), so that updates
/// below half a unit in the last place are not lost: weights take 2 bytes per parameter, instead of 4 or 6 with master
/// weights. State: exp_avg and exp_avg_sq, float32, or bfloat16 and then rounded stochastically too. The random numbers
/// depend on the seed, the number of steps that the parameter has taken, its name and the element's index in the whole
/// parameter.
class StochasticAdamW final : public PerParameterOptimizer {
 public:
  /// `names` as for PerParameterOptimizer. Parameters must be bfloat16, which allocate() and step() check.
  StochasticAdamW(const OptimizerConfig& config, const std::vector<std::string>& names, uint64_t seed);
  bool takes_found_inf() const override { return true; }

 private:
  at::ScalarType state_type(at::ScalarType) const override { return state_type_; }
  bool needs_step_numbers() const override { return true; }  // the noise is a function of them
  void check_parameter(const NamedParameter& parameter) const override;
  void update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) override;

  uint64_t seed_;
  at::ScalarType state_type_;
};

}  // namespace lehr::optim
