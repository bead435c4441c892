// When the units of a fully sharded model are gathered, reduced and released: what happens at each call of a module and
// at the matching places of backward.
//
// Collectives are issued at places of the program alone: where a module is called, where autograd reaches the output of
// that call, and where it has passed the beginning of the unit. Autograd runs nodes in the reverse order of their
// making, and a unit's output hangs on its parameters even if no operator used them; so ranks that run the same modules
// issue the same collectives in the same order, whatever their data.
//
// Where backward comes in two halves (ops/weight_gradients.h), the first one releases the unit as a whole backward
// does, and keeps what gradients it has; those of the products join them in the second half, which then sums over
// ranks, unit by unit in the order of the first.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include "lehr/nn/module_holder.h"
#include "lehr/shard/gradient_sync.h"
#include "lehr/shard/shard_unit.h"
#include "lehr/shard/unit_graph.h"
#include "lehr/shard/unit_order.h"

namespace lehr::shard {

class UnitSchedule : public std::enable_shared_from_this<UnitSchedule> {
 public:
  struct Unit {
    std::unique_ptr<ShardUnit> shards;
    size_t modules = 1;
    bool reshard = true;                 ///< Released between forward and backward, ...
    bool stays_at_end = false;           ///< ... but not where forward ends with it, and backward begins.
    bool keep = false;                   ///< Released by finish_backward() alone.
    bool backward_reads_weights = true;  ///< Not so for embeddings.

    std::shared_ptr<UnitPass> pass = {};  // the one that is not through its modules
    int64_t graphs = 0;                   // passes whose backward is to come
    int64_t calls = 0;                    // that add gradients in this step's last microbatch, ...
    int64_t done = 0;                     // ... and those of them that did
    bool sent = false;                    // the step's gradients, as far as the schedule knows
  };

  /// `count` is the one that the units' memory is counted by.
  UnitSchedule(
      std::vector<Unit> units,
      std::unique_ptr<GradientSync> sync,
      std::shared_ptr<ByteCount> count,
      bool reduce_each_microbatch);
  ~UnitSchedule();
  UnitSchedule(const UnitSchedule&) = delete;
  UnitSchedule& operator=(const UnitSchedule&) = delete;

  /// What the hooks of modules do.
  at::Tensor call(size_t unit, size_t module, const at::Tensor& input, const nn::CallHook::Forward& forward);
  /// What the nodes in the graph do.
  void enter_backward(const UnitPass& pass);
  std::vector<at::Tensor> leave_backward(const std::shared_ptr<UnitPass>& pass, std::vector<at::Tensor> gradients);

  void begin_step();
  void set_last_microbatch(bool last) { last_ = last; }
  void finish_backward();
  void reset() noexcept;
  void hold();

  const std::vector<Unit>& units() const { return units_; }

 private:
  enum class Direction { forward, backward };
  void use(Unit& unit, Direction direction);
  at::Tensor join_graph(Unit& unit, const std::shared_ptr<UnitPass>& pass, const at::Tensor& input);
  static void end_pass(Unit& unit);
  void close(Unit& unit);
  void release(Unit& unit);
  static void finish_halves(UnitPass& pass);
  void reduce(const UnitPass& pass, const std::vector<at::Tensor>& gradients);
  void settle();
  void require_none_waiting(const char* call) const;
  void reduce_leftovers();
  void release_all(bool learn);

  std::shared_ptr<ByteCount> count_;  // outlives the units
  std::vector<Unit> units_;
  std::unique_ptr<GradientSync> sync_;
  UnitOrder forward_;
  UnitOrder backward_;
  ShardUnit* ahead_ = nullptr;  // gathered before it was asked for
  Unit* reducing_ = nullptr;    // whose gradients are under way
  std::unordered_set<const nn::Parameter*> had_gradient_;
  int64_t generation_ = 0;
  int64_t waiting_ = 0;        // passes that are between the halves of their backward
  bool ends_forward_ = false;  // no unit is expected after the one in use
  bool reduce_each_microbatch_;
  bool last_ = true;
  bool synchronized_ = true;  // the step's gradients are final
  bool held_ = false;
};

}  // namespace lehr::shard
