// Inserts communication in the order of a simulated execution.
#include "lehr/pipeline/communication.h"

#include "lehr/base/error.h"
#include "lehr/pipeline/check_program.h"
#include "lehr/pipeline/progress.h"

namespace lehr::pipeline {
namespace {

// Appends the transfer that follows from `action` to the lists of both ends.
void communicate(const Action& action, Program& result) {
  const auto list_of = [&](int64_t stage) -> std::vector<Actions>& {
    return result.ranks[static_cast<size_t>(result.rank_of_stage[static_cast<size_t>(stage)])];
  };
  const auto [kind, stage, microbatch] = action;
  if (kind == ActionKind::forward && sends_forward(result, stage)) {
    list_of(stage).push_back({{ActionKind::send_forward, stage, microbatch}});
    list_of(stage + 1).push_back({{ActionKind::receive_forward, stage + 1, microbatch}});
  }
  if (action.is_backward() && stage > 0 && sends_forward(result, stage - 1)) {
    list_of(stage).push_back({{ActionKind::send_backward, stage, microbatch}});
    list_of(stage - 1).push_back({{ActionKind::receive_backward, stage - 1, microbatch}});
  }
}

}  // namespace

Program add_communication(const Program& program) {
  require(!program.has_communication(), "pipeline program: it has communication already");
  check_program(program);
  Program result{
      .num_microbatches = program.num_microbatches,
      .rank_of_stage = program.rank_of_stage,
      .ranks = std::vector<std::vector<Actions>>(program.ranks.size())};
  Progress progress(program);
  std::vector<size_t> next(program.ranks.size(), 0);
  // The loop ends because check_program found no deadlock.
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      if (next[rank] == program.ranks[rank].size()) {
        continue;
      }
      const Actions& entry = program.ranks[rank][next[rank]];
      if (progress.missing(entry)) {
        continue;
      }
      result.ranks[rank].push_back(entry);
      for (const Action& action : entry) {
        communicate(action, result);
      }
      progress.finish(entry);
      ++next[rank];
      moved = true;
    }
  }
  return result;
}

}  // namespace lehr::pipeline
