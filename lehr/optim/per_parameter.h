// What optimizers share that treat each parameter by itself: state by name, counted steps, checks, and buckets of
// parameters that are alike.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/optim/optimizer.h"
#include "lehr/optim/parameter_groups.h"

namespace lehr::optim {

/// An optimizer whose update of a parameter depends on that parameter alone. It keeps the tensors that a subclass
/// names, zeros at first and shaped like the parameter, and "<parameter>.step", int64 without dimensions, on the CPU.
class PerParameterOptimizer : public Optimizer {
 public:
  void allocate(const std::vector<NamedParameter>& parameters) override;
  void step(const std::vector<NamedParameter>& parameters, const StepOptions& options = {}) override;
  std::vector<std::pair<std::string, at::Tensor>> state() const override;

  /// Throws what step() would throw for these parameters.
  void check(const std::vector<NamedParameter>& parameters) const;
  const ParameterGroups& groups() const { return groups_; }

 protected:
  /// A parameter in its bucket, ready for the update.
  struct Item {
    const NamedParameter* parameter = nullptr;
    at::Tensor value = {};
    at::Tensor grad = {};                ///< Contiguous.
    std::vector<at::Tensor> state = {};  ///< In the order of the names that the constructor got.
    int64_t step = 0;                    ///< Counted from 1, this one included.
  };

  /// `names` are the trained parameters of the whole model, in all pipeline stages; see ParameterGroups for errors.
  PerParameterOptimizer(
      const OptimizerConfig& config, const std::vector<std::string>& names, std::vector<std::string> state_names);

  /// The dtype of the state of a parameter of dtype `value`.
  virtual at::ScalarType state_type(at::ScalarType value) const { return value; }
  /// Throws a usage error if this parameter is none for this optimizer; general rules hold already.
  virtual void check_parameter(const NamedParameter&) const {}
  /// One step of items of one group, device and dtype.
  virtual void update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) = 0;

  /// The divisor of `options` as ATen's fused kernels take it; nothing where it is 1. For float64, for which theirs is
  /// too coarse, the gradients are divided here.
  static std::optional<at::Tensor> grad_scale(const std::vector<Item>& items, const StepOptions& options);
  /// found_inf of `options` as ATen's fused kernels take it.
  static std::optional<at::Tensor> found_inf(const StepOptions& options);
  static std::vector<at::Tensor> values(const std::vector<Item>& items);
  static std::vector<at::Tensor> grads(const std::vector<Item>& items);
  /// State tensor number `index` of each.
  static std::vector<at::Tensor> states(const std::vector<Item>& items, size_t index);

 private:
  struct State {
    std::vector<at::Tensor> tensors;
    at::Tensor step;
  };

  ParameterGroups groups_;
  std::vector<std::string> state_names_;
  std::map<std::string, State> states_;
};

}  // namespace lehr::optim
