// The time of a step's passes, by rank along pp, with calls that are in flight from one pass to another.
#pragma once

#include <vector>

#include "lehr/pipeline/action_clock.h"
#include "lehr/pipeline/program.h"
#include "lehr/plan/cost_model.h"
#include "lehr/plan/exposed.h"

namespace lehr::plan {

/// A step begins with each stage's work before its first forward, and ends with that after its last backward.
class StepClock : public pipeline::ActionClock {
 public:
  /// `stages` must have passes, and outlive the object. `overlap` is Machine::communication_overlap.
  StepClock(const pipeline::Program& program, const std::vector<const StageCost*>& stages, double overlap);

  double act(int64_t rank, const pipeline::Action& action, double start) override;
  double finish(int64_t rank, double start) override;

  /// The passes of a rank, in their order.
  const std::vector<const PassCost*>& passes(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].log; }
  /// Seconds of the step's begin that the rank spent before its first micro-batch arrived.
  double before_first(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].before_first; }
  /// The rank's waits.
  const RankPasses& waits(int64_t rank) const { return ranks_[static_cast<size_t>(rank)].passes; }

 private:
  struct Stage {
    const StageCost* cost;
    PassOrder order;
    StageCalls calls = {};
    const PassCost* last = nullptr;
  };
  struct Rank {
    RankPasses passes;
    double now = 0;
    double before_first = 0;
    std::vector<size_t> stages = {};
    std::vector<const PassCost*> log = {};
  };
  void run(Rank& rank, Stage& stage, const PassCost& pass, size_t begin, size_t end);

  std::vector<Stage> stages_;
  std::vector<Rank> ranks_;
};

}  // namespace lehr::plan
