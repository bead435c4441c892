#include "lehr/plan/exposed.h"

#include <algorithm>
#include <limits>

namespace lehr::plan {

size_t RankPasses::start(const TimedPass::Call& call) {
  const bool sends = call.collective == "send";
  const bool receives = call.collective == "receive";
  const std::string name = call.axes + (sends || receives ? " " + call.collective : "");
  const int64_t queue = names_.try_emplace(name, static_cast<int64_t>(names_.size())).first->second;
  return queues_.start({.queue = queue, .time = call.time, .sends = !receives, .receives = !sends});
}

// Returns the number of the call that an event waits for.
size_t RankPasses::awaited(const TimedPass::Call& call, size_t index, StageCalls& stage) {
  if (stage.numbers_[index] != StageCalls::kNone) {
    return std::exchange(stage.numbers_[index], StageCalls::kNone);
  }
  const auto found = std::find_if(stage.earlier_.begin(), stage.earlier_.end(), [&](const StageCalls::Open& one) {
    return one.axes == call.axes && one.collective == call.collective;
  });
  if (found == stage.earlier_.end()) {
    return call.collective == "all_gather" ? start(call) : StageCalls::kNone;
  }
  const size_t number = found->number;
  stage.earlier_.erase(found);
  return number;
}

double RankPasses::run(const TimedPass& pass, size_t begin, size_t end, StageCalls& stage) {
  if (begin == 0) {
    for (size_t i = 0; i < stage.numbers_.size(); ++i) {
      if (stage.numbers_[i] != StageCalls::kNone) {
        const TimedPass::Call& call = stage.pass_->calls[i];
        stage.earlier_.push_back({.number = stage.numbers_[i], .axes = call.axes, .collective = call.collective});
      }
    }
    stage.pass_ = &pass;
    stage.numbers_.assign(pass.calls.size(), StageCalls::kNone);
  }
  double seconds = 0;
  for (size_t i = begin; i < end; ++i) {
    queues_.pass(pass.seconds[i], /*computing=*/true);
    seconds += pass.seconds[i];
    if (const int64_t started = pass.events[i].started; started != ActionEvent::kNone) {
      const auto index = static_cast<size_t>(started);
      stage.numbers_[index] = start(pass.calls[index]);
    }
    if (const int64_t waited = pass.events[i].waited; waited != ActionEvent::kNone) {
      const auto index = static_cast<size_t>(waited);
      const TimedPass::Call& call = pass.calls[index];
      const size_t number = awaited(call, index, stage);
      double wait = 0;
      while (number != StageCalls::kNone && !queues_.done(number)) {
        wait += queues_.go_on(std::numeric_limits<double>::infinity(), /*computing=*/false);
      }
      if (wait > 0) {
        wait *= 1 - call.covered;
        exposed_[{call.axes, call.collective}] += wait;
        seconds += wait;
      }
    }
  }
  return seconds;
}

}  // namespace lehr::plan
