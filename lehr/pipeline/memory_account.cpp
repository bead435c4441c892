// Activations and boundary buffers of one rank, as a sum of changes over time.
#include "lehr/pipeline/memory_account.h"

#include <algorithm>

#include "lehr/pipeline/progress.h"

namespace lehr::pipeline {
namespace {

struct Change {
  double seconds;
  double bytes;
};

class Account {
 public:
  Account(const Program& program, const PipelineCosts& costs)
      : program_(program), costs_(costs), has_backward_(program.has_backward()) {}

  void add(const std::vector<TimedAction>& list) {
    for (const TimedAction& timed : list) {
      if (timed.action.is_receive()) {
        // A receive buffer is held from the start of the transfer; the computation that uses it frees it.
        change(timed.start, boundary(timed.action));
      } else if (timed.action.is_send()) {
        change(timed.end, -boundary(timed.action));
      } else {
        compute(timed);
      }
    }
  }

  std::vector<MemoryPoint> points() {
    // Memory freed at a moment can be reused for allocations at the same moment: only the sum of changes counts.
    std::stable_sort(
        changes_.begin(), changes_.end(), [](const Change& a, const Change& b) { return a.seconds < b.seconds; });
    std::vector<MemoryPoint> result;
    double bytes = 0;
    for (const Change& one : changes_) {
      bytes += one.bytes;
      if (result.empty() || result.back().seconds != one.seconds) {
        result.push_back({one.seconds, 0});
      }
      result.back().bytes = std::max(0.0, bytes);  // rounding may leave sums slightly below zero
    }
    return result;
  }

 private:
  // Returns the bytes of a transfer. They are stored with the stage that sends in the forward direction.
  double boundary(const Action& action) const {
    const bool own = action.kind == ActionKind::send_forward || action.kind == ActionKind::receive_backward;
    return costs_.boundary_bytes[static_cast<size_t>(action.stage - (own ? 0 : 1))];
  }

  void change(double seconds, double bytes) {
    if (bytes != 0) {
      changes_.push_back({seconds, bytes});
    }
  }

  void compute(const TimedAction& timed) {
    const int64_t stage = timed.action.stage;
    const auto s = static_cast<size_t>(stage);
    const bool from_rank = stage > 0 && sends_forward(program_, stage - 1);
    const bool to_rank = sends_forward(program_, stage);
    const double activations = costs_.activation_bytes[s];
    const double kept = activations * costs_.kept_after_dgrad;
    switch (timed.action.kind) {
      case ActionKind::forward:
        change(timed.start, activations - (from_rank ? costs_.boundary_bytes[s - 1] : 0));
        change(timed.end, to_rank ? costs_.boundary_bytes[s] : 0);
        change(timed.end, has_backward_ ? 0 : -activations);
        return;
      case ActionKind::backward_weight:
        change(timed.end, -kept);
        return;
      default: {
        const bool full = timed.action.kind == ActionKind::backward_full;
        change(timed.end, -(to_rank ? costs_.boundary_bytes[s] : 0));
        change(timed.end, full ? -activations : kept - activations);
        change(timed.end, from_rank ? costs_.boundary_bytes[s - 1] : 0);
      }
    }
  }

  const Program& program_;
  const PipelineCosts& costs_;
  bool has_backward_;
  std::vector<Change> changes_;
};

}  // namespace

std::vector<MemoryPoint> memory_over_time(
    const std::vector<TimedAction>& list, const Program& program, const PipelineCosts& costs) {
  Account account(program, costs);
  account.add(list);
  return account.points();
}

}  // namespace lehr::pipeline
