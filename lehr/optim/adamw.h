// AdamW over parameters that are known by name, with state that can be saved and restored bit for bit.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/optim/parameter_groups.h"

namespace lehr::optim {

/// A parameter as the optimizer sees it for one step. The tensors may be other ones at every step, as when shards are
/// freed and gathered; the name is what the state hangs on.
struct NamedParameter {
  std::string name = {};
  at::Tensor value = {};  ///< Updated in place. Contiguous; float32, float64 or bfloat16.
  at::Tensor grad = {};   ///< Same shape, dtype and device. Undefined: the parameter is left out of the step.
};

/// What may differ from step to step.
struct StepOptions {
  double lr_factor = 1.0;  ///< What the schedule multiplies every group's learning rate by.
  /// What gradients are divided by before use, as clip_divisor() gives it: one element, any device. Undefined: 1.
  at::Tensor grad_divisor = {};
};

/// torch.optim.AdamW with fused=True: decoupled weight decay, bias correction by the number of steps that this
/// parameter has taken, moments in the dtype of the parameter.
class AdamW {
 public:
  /// `names` are the trained parameters of the whole model, in all pipeline stages; see ParameterGroups for errors.
  AdamW(const OptimizerConfig& config, const std::vector<std::string>& names);

  /// Makes zero moments for parameters that have none, so that state() is complete before the first step, as loading
  /// needs. step() does it by itself. Gradients may be undefined.
  void allocate(const std::vector<NamedParameter>& parameters);

  /// One step over `parameters`. Where `grad_divisor` is not 1 the gradients may be divided in place, as by
  /// torch.nn.utils.clip_grad_norm_. Throws a usage error, before anything is changed, for a name that the constructor
  /// was not given, and for values, gradients or moments whose shape, dtype, device or layout do not fit together.
  void step(const std::vector<NamedParameter>& parameters, const StepOptions& options = {});

  /// The state in the order of names: "<parameter>.exp_avg" and "<parameter>.exp_avg_sq", shaped like the parameter (a
  /// local shard like its local shard), and "<parameter>.step", int64 without dimensions, on the CPU. The tensors are
  /// the optimizer's own, so that a reader may fill them in place.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

  /// Copies `tensors` into the state of all allocated parameters. Throws a usage error that lists every entry that is
  /// missing, left over, or of another shape or dtype; the state is then as it was. Nothing is ever dropped in silence.
  void load_state(const std::map<std::string, at::Tensor>& tensors);

  const ParameterGroups& groups() const { return groups_; }
  /// Bytes that the moments take.
  int64_t state_bytes() const;

 private:
  struct Moments {
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
    at::Tensor step;
  };
  struct Bucket;

  ParameterGroups groups_;
  std::map<std::string, Moments> moments_;
};

}  // namespace lehr::optim
