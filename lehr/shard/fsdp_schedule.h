// Schedule of FSDP: units are unsharded, prefetched, resharded and their gradients reduce-scattered at calls of modules
// and at the matching nodes of backward.
//
// Collectives are issued at four points of the program only: when a step begins, when a module is called, when autograd
// reaches the output of that call, and when it has passed the beginning of the unit. Autograd runs nodes in the reverse
// order of their creation, and a unit's output depends on its parameters even if no operator used them. So ranks that
// run the same modules issue the same collectives in the same order, whatever their data.
//
// If dgrad and wgrad run apart (ops/weight_gradients.h), dgrad reshards the unit as a whole backward does, and keeps
// the gradients that it has. Wgrad adds those of the matmuls, and then reduce-scatters, unit by unit in the order of
// dgrad.
#pragma once

#include <deque>
#include <memory>
#include <unordered_set>
#include <vector>

#include "lehr/nn/module_holder.h"
#include "lehr/shard/fsdp_graph.h"
#include "lehr/shard/fsdp_unit.h"
#include "lehr/shard/gradient_sync.h"
#include "lehr/shard/prefetch_order.h"

namespace lehr::shard {

/// The schedule of a model's units on one rank. It is not thread-safe: modules are called and backward runs on one
/// thread at a time. Calls out of order throw usage errors.
class FsdpSchedule final : public FsdpBackward, public std::enable_shared_from_this<FsdpSchedule> {
 public:
  /// A unit, how it is resharded, and its state in the current step.
  struct Unit {
    std::unique_ptr<FsdpUnit> shards;
    size_t modules = 1;                  ///< Modules that are called one after the other in a forward pass.
    bool reshard = true;                 ///< Reshard after forward, ...
    bool stays_at_end = false;           ///< ... except if forward ends with this unit and backward begins with it.
    bool keep = false;                   ///< Reshard in finish_backward() only.
    bool backward_reads_weights = true;  ///< False for embeddings: no unshard in backward.

    std::shared_ptr<FsdpPass> pass = {};  // the pass that has not called all modules yet
    int64_t graphs = 0;                   // passes whose backward has not ended
    int64_t calls = 0;                    // calls since the last finish_backward(), ...
    int64_t done = 0;                     // ... and those whose gradients were reduced
    bool sent = false;                    // the reduction of the step's last gradients was started
  };

  /// The points of a step at which reduce-scatters of gradients start and are waited for.
  struct Reductions {
    bool each_microbatch = true;  ///< False: gradients stay whole until the step's last micro-batch.
    bool wait_at_end = false;     ///< In that micro-batch, wait for all of them in finish_backward().
  };

  /// `count` is the counter that the units were constructed with.
  FsdpSchedule(
      std::vector<Unit> units,
      std::unique_ptr<GradientSync> sync,
      std::shared_ptr<ByteCount> count,
      Reductions reductions);
  ~FsdpSchedule();
  FsdpSchedule(const FsdpSchedule&) = delete;
  FsdpSchedule& operator=(const FsdpSchedule&) = delete;

  /// Called by the modules' hooks: unshards, prefetches the next unit, runs `forward`, and reshards after the unit's
  /// last module.
  at::Tensor call(size_t unit, size_t module, const at::Tensor& input, const nn::CallHook::Forward& forward);
  void enter_backward(const FsdpPass& pass) override;
  std::vector<at::Tensor> leave_backward(
      const std::shared_ptr<FsdpPass>& pass, std::vector<at::Tensor> gradients) override;

  /// Drops the gradients of the step before, reshards all units, and prefetches the first one.
  void begin_step();
  /// States whether the next forward and backward are those of the step's last micro-batch. True after begin_step().
  void set_last_microbatch(bool last) { last_ = last; }
  bool reductions_end_step() const { return reductions_.wait_at_end; }
  /// Waits for the reduce-scatters in flight, and reshards. After the last micro-batch it also reduces the gradients of
  /// units that some ranks did not use, and sums gradients over replicas. Throws a usage error outside of a step.
  void finish_backward();
  /// Forgets the current step, after an error: unshards, graphs and gradients. Backward of older graphs then throws.
  void reset() noexcept;
  /// Unshards all units until the next begin_step(), for evaluation and for reading whole parameters.
  void unshard_all();

  const std::vector<Unit>& units() const { return units_; }

 private:
  enum class Direction { forward, backward };
  PrefetchOrder& order_of(Direction direction);
  void prefetch();
  void use(Unit& unit, Direction direction);
  at::Tensor join_graph(Unit& unit, const std::shared_ptr<FsdpPass>& pass, const at::Tensor& input);
  static void end_pass(Unit& unit);
  void close(Unit& unit);
  void reshard(Unit& unit);
  static void finish_wgrad(const std::shared_ptr<FsdpSchedule>& self, FsdpPass& pass);
  void reduce(const FsdpPass& pass, const std::vector<at::Tensor>& gradients);
  void make_room_for(const Unit& unit);
  void finish_reduce_scatters();
  void require_none_waiting(const char* call) const;
  void reduce_leftovers();
  void reshard_all(bool learn);

  std::shared_ptr<ByteCount> count_;  // before units_, which refer to it
  std::vector<Unit> units_;
  std::unique_ptr<GradientSync> sync_;
  PrefetchOrder forward_;
  PrefetchOrder backward_;
  Direction direction_ = Direction::backward;  // of the last use
  FsdpUnit* ahead_ = nullptr;                  // the unit that is prefetched
  std::deque<Unit*> reducing_;                 // the units whose reduce-scatters run, in the order of their start
  std::unordered_set<const nn::Parameter*> had_gradient_;
  int64_t generation_ = 0;
  int64_t waiting_ = 0;        // passes between dgrad and wgrad
  bool ends_forward_ = false;  // no unit is expected after the one in use
  Reductions reductions_;
  bool last_ = true;
  bool synchronized_ = true;  // the step's gradients are final
  bool held_ = false;
};

}  // namespace lehr::shard
