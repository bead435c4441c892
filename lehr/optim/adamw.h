// AdamW and Adam on fused kernels.
#pragma once

#include <string>
#include <vector>

#include "lehr/optim/adamw_cpu.h"
#include "lehr/optim/per_parameter.h"

namespace lehr::optim {

/// The common part of AdamW and Adam. State: exp_avg and exp_avg_sq, in the dtype of the parameter.
class FusedAdam : public PerParameterOptimizer {
 public:
  /// `names` as for PerParameterOptimizer.
  FusedAdam(const OptimizerConfig& config, const std::vector<std::string>& names);

  bool takes_found_inf() const override { return true; }

 protected:
  /// Calls at::_fused_adamw_ or at::_fused_adam_, which have the same arguments.
  template <class Kernel>
  static void update_by(
      const Kernel& kernel, const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options);
};

/// torch.optim.AdamW with fused=True (Loshchilov and Hutter, https://arxiv.org/abs/1711.05101): decoupled weight decay,
/// bias correction by the number of steps that this parameter has taken.
class AdamW final : public FusedAdam {
 public:
  using FusedAdam::FusedAdam;

 private:
  void update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) override;
  static void update_on_cpu(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options);
  static void update_on_gpu(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options);
  static std::vector<AdamWTensors> tensors_of(const std::vector<Item>& items);
  static AdamWNumbers numbers_of(const GroupSettings& group, const StepOptions& options);
};

/// torch.optim.Adam with fused=True (Kingma and Ba, https://arxiv.org/abs/1412.6980): like AdamW, but weight decay is
/// added to the gradient, and so enters the moments.
class Adam final : public FusedAdam {
 public:
  using FusedAdam::FusedAdam;

 private:
  void update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) override;
};

}  // namespace lehr::optim
