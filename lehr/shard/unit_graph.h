// The places in autograd's graph where a unit of a fully sharded model begins and where the calls of its modules end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lehr/ops/weight_gradients.h"

namespace lehr::shard {

class ShardUnit;
class UnitSchedule;

/// One run through the modules of a unit: what its graph begins with, and how far it has come.
struct UnitPass {
  std::weak_ptr<UnitSchedule> schedule;
  size_t unit = 0;
  int64_t generation = 0;
  std::vector<bool> called = {};  // by module
  int64_t calls_in_graph = 0;
  bool in_graph = false;
  at::Tensor begin = {};  // a parameter as the graph shows it, while modules of the unit are still to come
  std::weak_ptr<ops::WeightGradients> weight_gradients = ops::WeightGradients::current();
  bool waiting = false;                    // between the halves of backward, with the ...
  std::vector<at::Tensor> gradients = {};  // ... sums so far, of the trainable parameters in order

  void add(const std::vector<at::Tensor>& more);
};

/// The unit's trainable parameters as the graph shows them. In backward, when it comes there, all their gradients are
/// there: UnitSchedule::leave_backward. Where weight gradients wait, it comes there once for each half.
std::vector<at::Tensor> begin_graph(const ShardUnit& shards, const std::shared_ptr<UnitPass>& pass, at::Device device);

/// The same for a unit without trainable parameters, at the input of a call, which it gives.
at::Tensor begin_frozen(const at::Tensor& input, const std::shared_ptr<UnitPass>& pass);

/// The output of a call. In backward, UnitSchedule::enter_backward comes before anything reads the weights; and the
/// beginning is reached even if no operator used a parameter.
at::Tensor end_call(const at::Tensor& output, const std::shared_ptr<UnitPass>& pass);

}  // namespace lehr::shard
