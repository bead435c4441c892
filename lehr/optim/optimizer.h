// The interface of optimizers: they update parameters that are identified by name, and their state can be saved and
// restored bit for bit. A program can add its own; those that a config can name are built by build_optimizer().
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::optim {

/// The region of a tensor in a whole parameter: a box of the tensor's size that begins at `offset` in a tensor of
/// `shape`. Both empty: the tensor is the whole parameter.
struct ShardSpan {
  std::vector<int64_t> shape = {};
  std::vector<int64_t> offset = {};
};

/// A parameter as the optimizer sees it in one step. The tensors may differ between steps, for example after shards
/// were reallocated; state is stored under the name.
struct NamedParameter {
  std::string name = {};
  at::Tensor value = {};  ///< Updated in place. Contiguous; float32, float64 or bfloat16.
  at::Tensor grad = {};   ///< Same shape, dtype and device. Undefined: the parameter is skipped in this step.
  ShardSpan placement = {};
};

/// Options that may differ from step to step.
struct StepOptions {
  double lr_factor = 1.0;  ///< The schedule's factor on every group's learning rate.
  /// Divisor of the gradients, from clip_divisor(): one element, any device. Undefined: 1.
  at::Tensor grad_divisor = {};
  /// One float32 element on the parameters' device: if it is 1, values and moments are unchanged. So the host need not
  /// know yet whether the gradients are finite. Only for optimizers with takes_found_inf(). Undefined: 0.
  at::Tensor found_inf = {};
};

/// Updates parameters from their gradients. Not thread-safe.
class Optimizer {
 public:
  Optimizer() = default;
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Allocates the state of parameters that have none, so that state() is complete before the first step, as loading
  /// requires. step() calls it if needed. Gradients may be undefined.
  virtual void allocate(const std::vector<NamedParameter>& parameters) = 0;

  /// Does one step over `parameters`. The result may depend on them, the options and state() only, so that a resumed
  /// run is the same. If `grad_divisor` is not 1, the gradients may be divided in place, as by
  /// torch.nn.utils.clip_grad_norm_. Throws a usage error, before anything is changed, for parameters that it was not
  /// built for, and for tensors that do not match.
  virtual void step(const std::vector<NamedParameter>& parameters, const StepOptions& options = {}) = 0;

  /// Returns whether step() supports StepOptions::found_inf.
  virtual bool takes_found_inf() const { return false; }

  /// Returns the state in the order of names, each "<parameter>.<name>", shaped like the parameter (for a shard: like
  /// the shard) or without dimensions. The tensors are the optimizer's own: writing to them restores a state.
  virtual std::vector<std::pair<std::string, at::Tensor>> state() const = 0;

  /// Copies `tensors` into the state of all allocated parameters. Throws a usage error that lists every entry that is
  /// missing, unexpected, or of another shape or dtype; the state is then unchanged. No entry is ignored.
  void load_state(const std::map<std::string, at::Tensor>& tensors);
  /// Throws the errors of load_state, and copies nothing.
  void require_state(const std::map<std::string, at::Tensor>& tensors) const;

  /// Returns the bytes of the state, without step counters.
  int64_t state_bytes() const;
};

/// A trained parameter of the whole model, even if this rank holds only a shard of it.
struct ParameterInfo {
  std::string name = {};
  std::vector<int64_t> shape = {};
};

class WholeTensors;

/// The inputs of an optimizer's construction.
struct OptimizerContext {
  std::vector<ParameterInfo> parameters = {};  ///< Of all pipeline stages, so that each checks patterns alike.
  uint64_t seed = 0;                           ///< The run's seed, for optimizers that draw random numbers.
  /// For optimizers whose update of an element depends on its whole tensor: parameters may be shards, and this gathers
  /// them (whole_tensors.h). Null: one device, all parameters are whole.
  std::shared_ptr<WholeTensors> whole_tensors = {};
};

/// "Float [2, 3] on cpu", for messages.
std::string describe(const at::Tensor& tensor);

}  // namespace lehr::optim
