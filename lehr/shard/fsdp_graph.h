// Autograd nodes of an FSDP unit: one at the parameters, where its graph begins, and one at the output of each call of
// its modules. In backward they call the schedule (FSDP2's pre- and post-backward hooks).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lehr/ops/weight_gradients.h"

namespace lehr::shard {

class FsdpUnit;
struct FsdpPass;

/// Interface that the nodes call in backward; FsdpSchedule is the only implementation.
class FsdpBackward {
 public:
  /// Unshards the pass's unit and prefetches the next one.
  virtual void enter_backward(const FsdpPass& pass) = 0;
  /// Reshards the unit, starts the reduce-scatter, and returns the gradients of FsdpUnit::own_values().
  virtual std::vector<at::Tensor> leave_backward(
      const std::shared_ptr<FsdpPass>& pass, std::vector<at::Tensor> gradients) = 0;

 protected:
  ~FsdpBackward() = default;
};

/// State of one pass through the modules of a unit, from the first call until the end of its backward.
struct FsdpPass {
  std::weak_ptr<FsdpBackward> schedule;
  size_t unit = 0;
  int64_t generation = 0;
  std::vector<bool> called = {};  // per module of the unit
  int64_t calls_in_graph = 0;
  bool in_graph = false;
  int64_t frozen_calls = 0;  // of a unit without trainable parameters: calls whose backward has not ended
  at::Tensor begin = {};     // an output of the Begin node, while modules of the unit are still to be called
  std::weak_ptr<ops::WeightGradients> weight_gradients = ops::WeightGradients::current();
  bool waiting = false;                    // dgrad ran, wgrad has not
  std::vector<at::Tensor> gradients = {};  // accumulated while waiting, per trainable parameter

  void add(const std::vector<at::Tensor>& more);
};

/// Returns the unit's trainable parameters as outputs of one autograd node. Its backward runs when all their gradients
/// are known, and calls FsdpBackward::leave_backward. If wgrad is deferred, it runs twice: after dgrad and after wgrad.
std::vector<at::Tensor> begin_graph(const FsdpUnit& shards, const std::shared_ptr<FsdpPass>& pass, at::Device device);

/// The same node for a unit without trainable parameters, placed at the input of a call. Returns the input.
at::Tensor begin_frozen(const at::Tensor& input, const std::shared_ptr<FsdpPass>& pass);

/// Returns the output of a call as the output of an autograd node. Its backward calls FsdpBackward::enter_backward,
/// before anything reads the weights. The output depends on the unit's parameters, so that backward reaches the node of
/// begin_graph() even if no operator used a parameter.
at::Tensor end_call(const at::Tensor& output, const std::shared_ptr<FsdpPass>& pass);

}  // namespace lehr::shard
