// Dependencies between actions, and the message of a deadlock.
#include "lehr/pipeline/progress.h"

#include <algorithm>
#include <set>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"

namespace lehr::pipeline {
namespace {

// B and I share a slot, as only one of them exists for a stage and micro-batch.
ActionKind slot(ActionKind kind) {
  return kind == ActionKind::backward_full ? ActionKind::backward_input : kind;
}

bool same(const Action& a, const Action& b) {
  return slot(a.kind) == slot(b.kind) && a.stage == b.stage && a.microbatch == b.microbatch;
}

// Returns an action and its position: "1B0, entry 7 of rank 1".
std::string place_of(const Program& program, const Action& wanted) {
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (size_t i = 0; i < program.ranks[rank].size(); ++i) {
      for (const Action& action : program.ranks[rank][i]) {
        if (same(action, wanted)) {
          return fmt::format("{}, entry {} of rank {}", to_string(action), i, rank);
        }
      }
    }
  }
  return to_string(wanted) + ", which is on no rank";
}

}  // namespace

Progress::Progress(const Program& program)
    : program_(program),
      has_communication_(program.has_communication()),
      done_(static_cast<size_t>(8 * program.num_stages() * program.num_microbatches), 0) {}

size_t Progress::index(const Action& action) const {
  const auto kind = static_cast<int64_t>(slot(action.kind));
  return static_cast<size_t>(
      (kind * program_.num_stages() + action.stage) * program_.num_microbatches + action.microbatch);
}

std::optional<Action> Progress::missing(const Action& action) const {
  const auto [kind, stage, microbatch] = action;
  const auto unless_done = [this](const Action& needed) {
    return is_done(needed) ? std::nullopt : std::optional(needed);
  };
  switch (kind) {
    case ActionKind::forward:
      if (stage == 0) {
        return std::nullopt;
      }
      return has_communication_ && sends_forward(program_, stage - 1)
                 ? unless_done({ActionKind::receive_forward, stage, microbatch})
                 : unless_done({ActionKind::forward, stage - 1, microbatch});
    case ActionKind::backward_full:
    case ActionKind::backward_input:
      if (const auto own = unless_done({ActionKind::forward, stage, microbatch});
          own || stage == program_.num_stages() - 1) {
        return own;
      }
      return has_communication_ && sends_forward(program_, stage)
                 ? unless_done({ActionKind::receive_backward, stage, microbatch})
                 : unless_done({ActionKind::backward_input, stage + 1, microbatch});
    case ActionKind::backward_weight:
    case ActionKind::send_backward:
      return unless_done({ActionKind::backward_input, stage, microbatch});
    case ActionKind::send_forward:
      return unless_done({ActionKind::forward, stage, microbatch});
    case ActionKind::receive_forward:
      return unless_done({ActionKind::send_forward, stage - 1, microbatch});
    case ActionKind::receive_backward:
      return unless_done({ActionKind::send_backward, stage + 1, microbatch});
  }
  return std::nullopt;
}

std::optional<Action> Progress::missing(const Actions& entry) const {
  for (const Action& action : entry) {
    if (const auto needed = missing(action)) {
      return needed;
    }
  }
  return std::nullopt;
}

void Progress::finish(const Actions& entry) {
  for (const Action& action : entry) {
    done_[index(action)] = 1;
  }
}

bool sends_forward(const Program& program, int64_t stage) {
  const auto s = static_cast<size_t>(stage);
  return stage + 1 < program.num_stages() && program.rank_of_stage[s] != program.rank_of_stage[s + 1];
}

namespace {
// Executes all lists, each rank as far as it can. Returns the number of executed entries by rank.
template <class CanBegin, class Finish>
std::vector<size_t> carry_out(const Program& program, const CanBegin& can_begin, const Finish& finish) {
  std::vector<size_t> next(program.ranks.size(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      const auto& list = program.ranks[rank];
      for (; next[rank] < list.size() && can_begin(list[next[rank]]); ++next[rank]) {
        finish(list[next[rank]]);
        moved = true;
      }
    }
  }
  return next;
}
}  // namespace

void run_to_the_end(const Program& program) {
  Progress progress(program);
  const auto next = carry_out(
      program,
      [&](const Actions& entry) { return !progress.missing(entry); },
      [&](const Actions& entry) { progress.finish(entry); });
  std::string waits;
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const auto& list = program.ranks[rank];
    if (next[rank] < list.size()) {
      const auto missing = progress.missing(list[next[rank]]);
      waits += fmt::format(
          "{}rank {} at entry {}, {}, waits for {}",
          waits.empty() ? "" : "; ",
          rank,
          next[rank],
          to_string(list[next[rank]]),
          place_of(program, value_of(missing, "pipeline program: what a rank that stands still waits for")));
    }
  }
  require(waits.empty(), "pipeline program: deadlock: {}", waits);
}

bool sends_may_wait(const Program& program) {
  std::set<Action> done;
  // Sends block until the peer has started its receive; a computation needs the send whose receive was started.
  const auto ready = [&](const Action& action) {
    const auto [kind, stage, microbatch] = action;
    switch (kind) {
      case ActionKind::send_forward:
        return done.contains({ActionKind::receive_forward, stage + 1, microbatch});
      case ActionKind::send_backward:
        return done.contains({ActionKind::receive_backward, stage - 1, microbatch});
      case ActionKind::forward:
        return !done.contains({ActionKind::receive_forward, stage, microbatch}) ||
               done.contains({ActionKind::send_forward, stage - 1, microbatch});
      case ActionKind::backward_full:
      case ActionKind::backward_input:
        return !done.contains({ActionKind::receive_backward, stage, microbatch}) ||
               done.contains({ActionKind::send_backward, stage + 1, microbatch});
      default:
        return true;
    }
  };
  const auto next = carry_out(
      program,
      [&](const Actions& entry) { return std::all_of(entry.begin(), entry.end(), ready); },
      [&](const Actions& entry) { done.insert(entry.begin(), entry.end()); });
  return std::equal(next.begin(), next.end(), program.ranks.begin(), [](size_t reached, const auto& list) {
    return reached == list.size();
  });
}

}  // namespace lehr::pipeline
