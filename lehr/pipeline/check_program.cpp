// The checks of a program, from single actions to the order of all actions. Checks of every action format a message
// only on failure (if and fail, not require).
#include "lehr/pipeline/check_program.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/pipeline/progress.h"

namespace lehr::pipeline {
namespace {

struct Position {
  int64_t rank;
  int64_t entry;
};

std::string describe(const Position& at, const Action& action) {
  return fmt::format("pipeline program, rank {}, entry {}: {}", at.rank, at.entry, to_string(action));
}

template <class Visitor>
void for_each_action(const Program& program, Visitor visit) {
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (size_t i = 0; i < program.ranks[rank].size(); ++i) {
      for (const Action& action : program.ranks[rank][i]) {
        visit(Position{static_cast<int64_t>(rank), static_cast<int64_t>(i)}, action, program.ranks[rank][i]);
      }
    }
  }
}

void check_shape(const Program& program) {
  require(program.num_ranks() > 0, "pipeline program: it has no ranks");
  require(program.num_stages() > 0, "pipeline program: it has no stages");
  require(
      program.num_microbatches > 0,
      "pipeline program: expected at least 1 micro-batch, found {}",
      program.num_microbatches);
  for (int64_t stage = 0; stage < program.num_stages(); ++stage) {
    const int64_t rank = program.rank_of_stage[static_cast<size_t>(stage)];
    require(
        rank >= 0 && rank < program.num_ranks(),
        "pipeline program: stage {} is on rank {}, expected 0 to {}",
        stage,
        rank,
        program.num_ranks() - 1);
  }
  for (int64_t rank = 0; rank < program.num_ranks(); ++rank) {
    const auto& list = program.ranks[static_cast<size_t>(rank)];
    require(!program.stages_of(rank).empty(), "pipeline program: rank {} has no stage", rank);
    for (size_t i = 0; i < list.size(); ++i) {
      require(!list[i].empty(), "pipeline program, rank {}, entry {}: it has no action", rank, i);
    }
  }
}

// The stage at the other end of a send or receive.
int64_t peer_stage(const Action& action) {
  return action.kind == ActionKind::send_forward || action.kind == ActionKind::receive_backward ? action.stage + 1
                                                                                                : action.stage - 1;
}

void check_action(const Program& program, const Position& at, const Action& action, const Actions& entry) {
  if (action.stage < 0 || action.stage >= program.num_stages()) {
    fail("{}: expected a stage below {}", describe(at, action), program.num_stages());
  }
  if (action.microbatch < 0 || action.microbatch >= program.num_microbatches) {
    fail("{}: expected a micro-batch below {}", describe(at, action), program.num_microbatches);
  }
  const int64_t host = program.rank_of_stage[static_cast<size_t>(action.stage)];
  if (host != at.rank) {
    fail("{}: stage {} is on rank {}", describe(at, action), action.stage, host);
  }
  if (action.is_compute()) {
    return;
  }
  if (entry.size() != 1) {
    fail("{}: a send or receive must be an entry of its own, found it in {}", describe(at, action), to_string(entry));
  }
  const int64_t peer = peer_stage(action);
  if (peer < 0 || peer >= program.num_stages()) {
    fail("{}: there is no stage {}", describe(at, action), peer);
  }
  if (program.rank_of_stage[static_cast<size_t>(peer)] == host) {
    fail(
        "{}: stages {} and {} are on the same rank, which passes tensors without communication",
        describe(at, action),
        action.stage,
        peer);
  }
}

// Records each action's entry, refuses duplicates, and checks that the required actions exist.
class Counts {
 public:
  explicit Counts(const Program& program)
      : program_(program), first_(static_cast<size_t>(8 * program.num_stages() * program.num_microbatches), -1) {
    for_each_action(program, [this](const Position& at, const Action& action, const Actions&) {
      int64_t& first = first_[index(action)];
      if (first >= 0) {
        fail("{}: it is already at entry {}", describe(at, action), first);
      }
      first = at.entry;
    });
  }

  void check_computations() const {
    const bool backward = program_.has_backward();
    for (int64_t stage = 0; stage < program_.num_stages(); ++stage) {
      for (int64_t m = 0; m < program_.num_microbatches; ++m) {
        const Action forward{ActionKind::forward, stage, m};
        const Action full{ActionKind::backward_full, stage, m};
        const Action input{ActionKind::backward_input, stage, m};
        const Action weight{ActionKind::backward_weight, stage, m};
        require_there(forward);
        if (!backward) {
          continue;
        }
        if (there(full)) {
          for (const Action& half : {input, weight}) {
            if (there(half)) {
              fail(
                  "{}: the backward is at entry {} as a whole, {}",
                  describe({host(stage), first_[index(half)]}, half),
                  first_[index(full)],
                  to_string(full));
            }
          }
          continue;
        }
        if (!there(input) && !there(weight)) {
          fail(
              "pipeline program, rank {}: stage {} has no backward of micro-batch {}: expected {}, or {} and {}",
              host(stage),
              stage,
              m,
              to_string(full),
              to_string(input),
              to_string(weight));
        }
        require_there(input);
        require_there(weight);
      }
    }
  }

  void check_communication() const {
    const bool backward = program_.has_backward();
    for (int64_t stage = 0; stage + 1 < program_.num_stages(); ++stage) {
      if (!sends_forward(program_, stage)) {
        continue;
      }
      for (int64_t m = 0; m < program_.num_microbatches; ++m) {
        require_there({ActionKind::send_forward, stage, m});
        require_there({ActionKind::receive_forward, stage + 1, m});
        if (backward) {
          require_there({ActionKind::send_backward, stage + 1, m});
          require_there({ActionKind::receive_backward, stage, m});
        }
      }
    }
  }

 private:
  size_t index(const Action& action) const {
    const auto kind = static_cast<int64_t>(action.kind);
    return static_cast<size_t>(
        (kind * program_.num_stages() + action.stage) * program_.num_microbatches + action.microbatch);
  }
  int64_t host(int64_t stage) const { return program_.rank_of_stage[static_cast<size_t>(stage)]; }
  bool there(const Action& action) const { return first_[index(action)] >= 0; }
  void require_there(const Action& action) const {
    if (!there(action)) {
      fail(
          "pipeline program, rank {}: {} is missing ({} stages, {} micro-batches)",
          host(action.stage),
          to_string(action),
          program_.num_stages(),
          program_.num_microbatches);
    }
  }

  const Program& program_;
  std::vector<int64_t> first_;
};

// Both ends of a connection must have the same transfers in the same order, as backends match them by order alone.
void check_pair_order(const Program& program) {
  struct Transfer {
    Position at;
    Action send;    // the transfer as a send
    Action action;  // the action in the list
  };
  using Pair = std::pair<int64_t, int64_t>;
  std::map<Pair, std::vector<Transfer>> sends;
  std::map<Pair, std::vector<Transfer>> receives;
  for_each_action(program, [&](const Position& at, const Action& action, const Actions&) {
    if (action.is_compute()) {
      return;
    }
    const int64_t peer = program.rank_of_stage[static_cast<size_t>(peer_stage(action))];
    if (action.is_send()) {
      sends[{at.rank, peer}].push_back({at, action, action});
      return;
    }
    const bool forward = action.kind == ActionKind::receive_forward;
    const Action send{
        forward ? ActionKind::send_forward : ActionKind::send_backward, peer_stage(action), action.microbatch};
    receives[{peer, at.rank}].push_back({at, send, action});
  });
  for (const auto& [pair, sent] : sends) {
    const auto& received = receives[pair];
    for (size_t i = 0; i < sent.size(); ++i) {
      if (sent[i].send != received[i].send) {
        fail(
            "{}: transfer {} from rank {} to rank {} is {} (entry {} of the sender) but the receiver expects {}; both "
            "ends must have the same order",
            describe(received[i].at, received[i].action),
            i,
            pair.first,
            pair.second,
            to_string(sent[i].send),
            sent[i].at.entry,
            to_string(received[i].send));
      }
    }
  }
}

// Returns the largest number of live forwards by rank. A forward ends with its B or with its `last_half` (I or W).
std::vector<int64_t> peak(const Program& program, ActionKind last_half) {
  std::vector<int64_t> peaks;
  for (const auto& list : program.ranks) {
    int64_t alive = 0;
    int64_t highest = 0;
    for (const Actions& entry : list) {
      for (const Action& action : entry) {
        alive += action.kind == ActionKind::forward ? 1 : 0;
      }
      highest = std::max(highest, alive);
      for (const Action& action : entry) {
        alive -= action.kind == ActionKind::backward_full || action.kind == last_half ? 1 : 0;
      }
    }
    peaks.push_back(highest);
  }
  return peaks;
}

}  // namespace

void check_program(const Program& program) {
  check_shape(program);
  int64_t num_actions = 0;
  for_each_action(program, [&](const Position& at, const Action& action, const Actions& entry) {
    check_action(program, at, action, entry);
    ++num_actions;
  });
  // Checked before Counts allocates a table of this size.
  require(
      num_actions / program.num_stages() >= program.num_microbatches,
      "pipeline program: {} stages and {} micro-batches need as many forwards as their product, found {} actions in "
      "total",
      program.num_stages(),
      program.num_microbatches,
      num_actions);
  const Counts counts(program);
  counts.check_computations();
  if (program.has_communication()) {
    counts.check_communication();
    check_pair_order(program);
  }
  run_to_the_end(program);
}

std::vector<int64_t> peak_forwards(const Program& program) {
  return peak(program, ActionKind::backward_weight);
}

std::vector<int64_t> peak_forwards_until_input(const Program& program) {
  return peak(program, ActionKind::backward_input);
}

}  // namespace lehr::pipeline
