// Stochastic gradient descent with momentum, on ATen's fused kernel.
#pragma once

#include <string>
#include <vector>

#include "lehr/optim/per_parameter.h"

namespace lehr::optim {

/// torch.optim.SGD with fused=True: weight decay is added to the gradient, and momentum may be Nesterov's. State, with
/// momentum: momentum_buffer, in the dtype of the parameter; the first gradient initializes it without dampening.
class SGD final : public PerParameterOptimizer {
 public:
  /// `names` as for PerParameterOptimizer.
  SGD(const OptimizerConfig& config, const std::vector<std::string>& names);

  bool takes_found_inf() const override { return true; }

 private:
  void update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) override;

  double momentum_;
  double dampening_;
  bool nesterov_;
};

}  // namespace lehr::optim
