#include "lehr/plan/step_clock.h"

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::plan {

namespace {
const PassCost& pass_at(const StageCost& cost, const PassPlace& place) {
  const PassCost* pass = find_pass(cost.passes, place);
  invariant(pass != nullptr, "step clock: a stage has no pass of kind {}", static_cast<int>(place.kind));
  return *pass;
}
}  // namespace

// Each step expects the order of the step before, which is the same program.
StepClock::StepClock(const pipeline::Program& program, const std::vector<const StageCost*>& stages, double overlap) {
  for (const StageCost* cost : stages) {
    stages_.push_back({.cost = cost, .order = {}});
    stages_.back().order.begin_step(program.num_microbatches);
  }
  for (const auto& list : program.ranks) {
    for (const pipeline::Actions& entry : list) {
      for (const pipeline::Action& action : entry) {
        if (action.is_compute()) {
          stages_[static_cast<size_t>(action.stage)].order.next(action.kind);
        }
      }
    }
  }
  for (int64_t number = 0; number < program.num_ranks(); ++number) {
    Rank& rank = ranks_.emplace_back(Rank{.passes = RankPasses(overlap)});
    for (const int64_t index : program.stages_of(number)) {
      Stage& stage = stages_[static_cast<size_t>(index)];
      stage.order.begin_step(program.num_microbatches);
      const PassPlace first = PassOrder(stage.order).next(pipeline::ActionKind::forward);
      const PassCost& pass = pass_at(*stage.cost, first);
      run(rank, stage, pass, 0, pass.border);
      rank.stages.push_back(static_cast<size_t>(index));
    }
  }
}

void StepClock::run(Rank& rank, Stage& stage, const PassCost& pass, size_t begin, size_t end) {
  rank.now += rank.passes.run(pass.timed, begin, end, stage.calls);
}

double StepClock::act(int64_t rank_number, const pipeline::Action& action, double start) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  Stage& stage = stages_[static_cast<size_t>(action.stage)];
  if (rank.log.empty()) {
    rank.before_first = std::min(start, rank.now);
  }
  if (start > rank.now) {
    rank.passes.pass_time(start - rank.now, /*computing=*/false);
    rank.now = start;
  }
  const PassPlace place = stage.order.next(action.kind);
  const PassCost& pass = pass_at(*stage.cost, place);
  rank.log.push_back(&pass);
  const bool begun = place.first && action.kind == pipeline::ActionKind::forward;
  run(rank, stage, pass, begun ? pass.border : 0, place.last ? pass.border : pass.timed.events.size());
  rank.passes.pass_time(pass.cost.slowest, /*computing=*/true);
  rank.now += pass.cost.slowest;
  stage.last = place.last ? &pass : nullptr;
  return rank.now - start;
}

double StepClock::finish(int64_t rank_number, double start) {
  Rank& rank = ranks_[static_cast<size_t>(rank_number)];
  for (const size_t number : rank.stages) {
    Stage& stage = stages_[number];
    invariant(stage.last != nullptr, "step clock: a step of stage {} without a last backward", number);
    run(rank, stage, *stage.last, stage.last->border, stage.last->timed.events.size());
  }
  return rank.now - start;
}

}  // namespace lehr::plan
