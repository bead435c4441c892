// The common part of optimizers that update each parameter independently: state by name, step counters, checks, and
// buckets of similar parameters.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/memory/async_copy.h"
#include "lehr/optim/optimizer.h"
#include "lehr/optim/parameter_groups.h"

namespace lehr::optim {

/// An optimizer whose update of a parameter depends on that parameter alone. It holds the state tensors that a subclass
/// names, initially zeros and shaped like the parameter, and "<parameter>.step", int64 without dimensions, on the CPU.
class PerParameterOptimizer : public Optimizer {
 public:
  void allocate(const std::vector<NamedParameter>& parameters) override;
  void step(const std::vector<NamedParameter>& parameters, const StepOptions& options = {}) override;
  std::vector<std::pair<std::string, at::Tensor>> state() const override;

  /// Throws the errors of step() for these parameters.
  void check(const std::vector<NamedParameter>& parameters) const;
  const ParameterGroups& groups() const { return groups_; }

 protected:
  /// A parameter in its bucket, ready for the update.
  struct Item {
    const NamedParameter* parameter = nullptr;
    at::Tensor value = {};
    at::Tensor grad = {};                ///< Contiguous.
    std::vector<at::Tensor> state = {};  ///< In the order of the names passed to the constructor.
    int64_t step = 0;                    ///< Counted from 1, including this step and the skipped ones of `left_out`.
    at::Tensor left_out = {};            ///< Number of earlier skipped steps, float32 (1); undefined: none.
  };

  /// `names` are the trained parameters of the whole model, in all pipeline stages; see ParameterGroups for errors.
  PerParameterOptimizer(
      const OptimizerConfig& config, const std::vector<std::string>& names, std::vector<std::string> state_names);

  /// Returns the dtype of the state of a parameter of dtype `value`.
  virtual at::ScalarType state_type(at::ScalarType value) const { return value; }
  /// Returns whether update() needs Item::step without skipped steps, so that Item::left_out is undefined. The host
  /// then waits in step() until the device has finished the previous update; later work may be enqueued by then.
  virtual bool needs_step_numbers() const { return false; }
  /// Throws a usage error if the optimizer does not support this parameter; general checks have passed already.
  virtual void check_parameter(const NamedParameter&) const {}
  /// Updates items of one group, device and dtype.
  virtual void update(const GroupSettings& group, const std::vector<Item>& items, const StepOptions& options) = 0;

  /// Returns the divisor of `options` in the form of ATen's fused kernels; nothing if it is 1. For float64, for which
  /// that form is too coarse, divides the gradients in place instead.
  static std::optional<at::Tensor> grad_scale(const std::vector<Item>& items, const StepOptions& options);
  /// Returns the numbers of steps that the items have taken, including this one: (items) float32 on their device.
  static at::Tensor steps_taken(const std::vector<Item>& items);
  /// Returns found_inf of `options` in the form of ATen's fused kernels.
  static std::optional<at::Tensor> found_inf(const StepOptions& options);
  static std::vector<at::Tensor> values(const std::vector<Item>& items);
  static std::vector<at::Tensor> grads(const std::vector<Item>& items);
  /// Returns state tensor `index` of each item.
  static std::vector<at::Tensor> states(const std::vector<Item>& items, size_t index);

 private:
  struct State {
    std::vector<at::Tensor> tensors;
    at::Tensor step;      // includes skipped steps
    at::Tensor left_out;  // number of skipped steps, on the device, not yet read by the host; undefined: none
  };
  /// Reads the numbers of skipped steps, and subtracts them from the step counters.
  void subtract_skipped_steps() const;

  ParameterGroups groups_;
  std::vector<std::string> state_names_;
  mutable std::map<std::string, State> states_;  // mutable because state() subtracts the steps that the device skipped
  // With needs_step_numbers(): State::left_out after the last step, and its copy on the host.
  at::Tensor last_left_out_;
  AsyncCopy last_left_out_on_host_;
};

}  // namespace lehr::optim
