// What an optimizer is to a run: it updates parameters that are known by name, and its state can be saved and restored
// bit for bit. A program can bring its own; the ones that a config can name are built by build_optimizer().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/optim/optimizer_config.h"

namespace lehr::optim {

/// Which part of a whole parameter a tensor is: the box of the tensor's size that begins at `offset` in one of `shape`.
/// Both empty: the tensor is the whole parameter.
struct Placement {
  std::vector<int64_t> shape = {};
  std::vector<int64_t> offset = {};
};

/// A parameter as the optimizer sees it for one step. The tensors may be other ones at every step, as when shards are
/// freed and gathered; the name is what the state hangs on.
struct NamedParameter {
  std::string name = {};
  at::Tensor value = {};  ///< Updated in place. Contiguous; float32, float64 or bfloat16.
  at::Tensor grad = {};   ///< Same shape, dtype and device. Undefined: the parameter is left out of the step.
  Placement placement = {};
};

/// What may differ from step to step.
struct StepOptions {
  double lr_factor = 1.0;  ///< What the schedule multiplies every group's learning rate by.
  /// What gradients are divided by before use, as clip_divisor() gives it: one element, any device. Undefined: 1.
  at::Tensor grad_divisor = {};
  /// One float32 element on the parameters' device: where it is 1, values and moments stay as they are. So the host
  /// need not know yet whether the gradients are finite. Only for optimizers with takes_found_inf(). Undefined: 0.
  at::Tensor found_inf = {};
};

/// Updates parameters from their gradients. Not for several threads at once.
class Optimizer {
 public:
  Optimizer() = default;
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Makes the state of parameters that have none, so that state() is complete before the first step, as loading needs.
  /// step() does it by itself. Gradients may be undefined.
  virtual void allocate(const std::vector<NamedParameter>& parameters) = 0;

  /// One step over `parameters`; what it does may depend on them, the options and state() alone, so that a resumed run
  /// is the same. Where `grad_divisor` is not 1 the gradients may be divided in place, as by
  /// torch.nn.utils.clip_grad_norm_. Throws a usage error, before anything is changed, for parameters that it was not
  /// built for and tensors that do not fit together.
  virtual void step(const std::vector<NamedParameter>& parameters, const StepOptions& options = {}) = 0;

  /// Whether step() heeds StepOptions::found_inf. Counters of steps go on in any case.
  virtual bool takes_found_inf() const { return false; }

  /// The state in the order of names, each "<parameter>.<what>", shaped like the parameter (a local shard like its
  /// local shard) or without dimensions. The tensors are the optimizer's own: filling them in place restores a state.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() const = 0;

  /// Copies `tensors` into the state of all allocated parameters. Throws a usage error that lists every entry that is
  /// missing, left over, or of another shape or dtype; the state is then as it was. Nothing is ever dropped in silence.
  void load_state(const std::map<std::string, at::Tensor>& tensors);
  /// Throws what load_state would, and copies nothing.
  void require_state(const std::map<std::string, at::Tensor>& tensors) const;

  /// Bytes that the state takes, but for counters.
  int64_t state_bytes() const;
};

/// A trained parameter of the whole model, whatever part of it this rank holds.
struct ParameterInfo {
  std::string name = {};
  std::vector<int64_t> shape = {};
};

/// What an optimizer is built for.
struct OptimizerContext {
  std::vector<ParameterInfo> parameters = {};  ///< Of all pipeline stages, so that patterns are judged alike on each.
  uint64_t seed = 0;                           ///< Of the run, for optimizers that draw random numbers.
};

/// Makes an optimizer from the section `[optimizer]` and the model's parameters.
using OptimizerBuilder =
    std::function<std::unique_ptr<Optimizer>(const OptimizerConfig& config, const OptimizerContext& context)>;

/// The optimizer that `config.name` names. Throws a usage error for whatever OptimizerConfig::check finds, and for
/// patterns that no parameter falls to.
std::unique_ptr<Optimizer> build_optimizer(const OptimizerConfig& config, const OptimizerContext& context);

/// "Float [2, 3] on cpu", for messages.
std::string describe(const at::Tensor& tensor);

}  // namespace lehr::optim
