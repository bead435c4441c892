#include "lehr/plan/memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace lehr::plan {

namespace {
using pipeline::ActionKind;
using pipeline::TimedAction;

double bytes_of(int64_t value) {
  return static_cast<double>(value);
}

class RankAccount {
 public:
  RankAccount(
      const pipeline::Program& program,
      int64_t rank,
      const std::vector<const StageMeasurement*>& stages,
      bool splits_backward)
      : rank_of_stage_(program.rank_of_stage),
        stages_(stages),
        splits_backward_(splits_backward),
        num_microbatches_(program.num_microbatches) {
    for (const int64_t stage : program.stages_of(rank)) {
      const StageMeasurement& s = at(stage);
      base_[MemoryKind::parameters] += bytes_of(s.parameter_bytes + s.compute_copy_bytes + s.other_bytes);
      base_[MemoryKind::optimizer] += bytes_of(s.optimizer_bytes);
      const double batches = bytes_of(s.batch_bytes) * static_cast<double>(program.num_microbatches);
      // Shared by the rank's stages.
      base_[MemoryKind::activations] = std::max(base_[MemoryKind::activations], batches);
    }
  }

  RankMemory account(const std::vector<TimedAction>& list) {
    std::vector<const TimedAction*> order;
    for (const TimedAction& timed : list) {
      order.push_back(&timed);
      last_end_ = std::max(last_end_, timed.end);
    }
    // By start time: transfers begin while other actions compute.
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->start < b->start; });
    for (const TimedAction* timed : order) {
      release_until(timed->start);
      begin(*timed);
    }
    release_until(std::numeric_limits<double>::infinity());
    return std::move(result_);
  }

 private:
  const StageMeasurement& at(int64_t stage) const { return *stages_[static_cast<size_t>(stage)]; }
  bool crosses(int64_t stage) const {
    return stage >= 0 && stage + 1 < static_cast<int64_t>(stages_.size()) &&
           rank_of_stage_[static_cast<size_t>(stage)] != rank_of_stage_[static_cast<size_t>(stage + 1)];
  }

  void begin(const TimedAction& timed) {
    const auto& action = timed.action;
    const int64_t stage = action.stage;
    if (action.is_send()) {
      const int64_t boundary = action.kind == ActionKind::send_forward ? stage : stage - 1;
      later(timed.end, MemoryKind::boundary, -bytes_of(at(boundary).boundary_bytes));
      return;
    }
    if (action.is_receive()) {
      const int64_t boundary = action.kind == ActionKind::receive_forward ? stage - 1 : stage;
      add(timed.start, MemoryKind::boundary, bytes_of(at(boundary).boundary_bytes));
      return;
    }
    compute(timed);
  }

  void compute(const TimedAction& timed) {
    const int64_t stage = timed.action.stage;
    const StageMeasurement& s = at(stage);
    const bool forward = timed.action.kind == ActionKind::forward;
    const bool weight = timed.action.kind == ActionKind::backward_weight;
    const bool first_backward = !forward && had_backward_.insert(stage).second;
    const ActionMeasurement& action = forward  ? s.forward
                                      : weight ? s.backward_weight
                                      : timed.action.kind == ActionKind::backward_input && splits_backward_
                                          ? s.backward_input
                                          : s.backward;
    const auto key = std::make_pair(stage, timed.action.microbatch);
    const double before = kept_[key];  // of this micro-batch, included in the action's peak
    double peak = bytes_of(action.peak);
    const bool completes = weight || timed.action.kind == ActionKind::backward_full;
    const bool last_backward = completes && ++backwards_[stage] == num_microbatches_;
    const double coming = bytes_of(s.gradient_bytes + (last_backward ? 0 : s.whole_gradient_bytes));
    if (timed.action.kind == ActionKind::backward_full) {
      if (first_backward) {
        peak = bytes_of(last_backward ? s.only_backward_peak : s.first_backward_peak);
      } else if (last_backward) {
        peak = bytes_of(s.last_backward_peak);
      }
    } else if (first_backward) {
      peak += coming;
    }
    // The first backward's peak includes the gradients that it allocates.
    const double gradients = first_backward ? std::clamp(peak - before, 0.0, coming) : 0;
    const double whole = std::clamp(peak - gradients - before, 0.0, bytes_of(s.gathered_peak));
    // The peak also includes parameters of this stage that stayed unsharded, which `held_` already counts.
    const double stayed = stays_.contains(stage) ? bytes_of(s.gathered_after_forward) : 0;
    // Split the peak by kind: new gradients, gathered weights, kept activations; the rest is workspace.
    MemoryByKind during = held_;
    during[MemoryKind::gathered] += std::max(0.0, whole - stayed);
    during[MemoryKind::gradients] += gradients;
    const double rest = std::max(0.0, peak - gradients - whole - before);
    const double kept = forward ? std::min(bytes_of(action.kept), rest) : 0;
    during[MemoryKind::activations] += kept;
    during[MemoryKind::workspace] += rest - kept;
    note(timed.start, during);
    if (first_backward) {
      later(timed.end, MemoryKind::gradients, coming);
    } else if (last_backward) {
      // Buffers of reductions have the memory of the gradients that they are filled from.
      const double reduced = s.reductions_end_step ? last_end_ : timed.end;
      later(reduced, MemoryKind::gradients, -bytes_of(s.whole_gradient_bytes));
    }
    kept_[key] = completes ? 0 : bytes_of(action.kept);
    later(timed.end, MemoryKind::activations, kept_[key] - before);
    if (forward) {
      if (stays_.insert(stage).second) {
        later(timed.end, MemoryKind::gathered, bytes_of(s.gathered_after_forward));
      }
      // A received tensor is kept with the activations, as the stage's input.
      later(timed.end, MemoryKind::boundary, crosses(stage - 1) ? -bytes_of(at(stage - 1).boundary_bytes) : 0);
      later(timed.end, MemoryKind::boundary, crosses(stage) ? bytes_of(s.boundary_bytes) : 0);
    } else if (!weight) {
      later(timed.end, MemoryKind::boundary, crosses(stage) ? -bytes_of(s.boundary_bytes) : 0);
      later(timed.end, MemoryKind::boundary, crosses(stage - 1) ? bytes_of(at(stage - 1).boundary_bytes) : 0);
    }
  }

  void add(double seconds, MemoryKind kind, double bytes) {
    held_[kind] = std::max(0.0, held_[kind] + bytes);
    note(seconds, held_);
  }
  void later(double seconds, MemoryKind kind, double bytes) {
    if (bytes != 0) {
      ends_.emplace(seconds, std::make_pair(kind, bytes));
    }
  }
  void release_until(double seconds) {
    while (!ends_.empty() && ends_.begin()->first <= seconds) {
      const double moment = ends_.begin()->first;
      // Memory freed at a moment can be reused for allocations at the same moment.
      for (; !ends_.empty() && ends_.begin()->first == moment; ends_.erase(ends_.begin())) {
        const auto [kind, bytes] = ends_.begin()->second;
        held_[kind] += bytes;
      }
      for (double& bytes : held_.bytes) {
        bytes = std::max(0.0, bytes);
      }
      note(moment, held_);
    }
  }
  void note(double seconds, MemoryByKind held) {
    for (size_t kind = 0; kind < kMemoryKinds; ++kind) {
      held.bytes[kind] += base_.bytes[kind];
    }
    if (!result_.moments.empty() && result_.moments.back().seconds == seconds) {
      result_.moments.back().held = held;
    } else {
      result_.moments.push_back({seconds, held});
    }
    if (held.total() > result_.peak.total()) {
      result_.peak = held;
    }
  }

  const std::vector<int64_t>& rank_of_stage_;
  const std::vector<const StageMeasurement*>& stages_;
  bool splits_backward_;
  int64_t num_microbatches_;
  double last_end_ = 0;                                 // of the rank's actions
  MemoryByKind base_;                                   // held during the whole step
  MemoryByKind held_;                                   // held now, beyond base_
  std::map<std::pair<int64_t, int64_t>, double> kept_;  // indexed by stage and micro-batch
  std::set<int64_t> had_backward_;
  std::map<int64_t, int64_t> backwards_;
  std::set<int64_t> stays_;
  std::multimap<double, std::pair<MemoryKind, double>> ends_;
  RankMemory result_;
};
}  // namespace

std::string_view name_of(MemoryKind kind) {
  constexpr std::array<std::string_view, kMemoryKinds> kNames{
      "parameters", "gradients", "optimizer state", "gathered weights", "activations", "boundary buffers", "workspace"};
  return kNames[static_cast<size_t>(kind)];
}

double MemoryByKind::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), 0.0);
}

std::vector<RankMemory> memory_by_rank(
    const pipeline::Timeline& timeline, const std::vector<const StageMeasurement*>& stages, bool splits_backward) {
  std::vector<RankMemory> ranks;
  for (int64_t rank = 0; rank < timeline.program.num_ranks(); ++rank) {
    RankAccount account(timeline.program, rank, stages, splits_backward);
    ranks.push_back(account.account(timeline.ranks[static_cast<size_t>(rank)]));
  }
  return ranks;
}

}  // namespace lehr::plan
