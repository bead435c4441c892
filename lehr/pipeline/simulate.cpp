// Event-driven simulation: each rank advances until an input is missing, and a transfer wakes its receiver.
#include "lehr/pipeline/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/pipeline/check_program.h"
#include "lehr/pipeline/communication.h"
#include "lehr/pipeline/memory_account.h"
#include "lehr/pipeline/progress.h"

namespace lehr::pipeline {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

void check_cost(double value, std::string_view name) {
  require(std::isfinite(value) && value >= 0, "pipeline costs: expected a number from 0 for {}, found {}", name, value);
}

// Returns the values of all stages; a single value is repeated.
std::vector<double> by_stage(const std::vector<double>& values, int64_t num_stages, std::string_view name) {
  require(
      values.size() == 1 || static_cast<int64_t>(values.size()) == num_stages,
      "pipeline costs: expected 1 or {} values for {}, one per stage, found {}",
      num_stages,
      name,
      values.size());
  for (const double value : values) {
    check_cost(value, name);
  }
  return values.size() == 1 ? std::vector<double>(static_cast<size_t>(num_stages), values[0]) : values;
}

PipelineCosts checked(PipelineCosts costs, int64_t num_stages) {
  costs.forward = by_stage(costs.forward, num_stages, "forward");
  costs.backward_input = by_stage(costs.backward_input, num_stages, "backward_input");
  costs.backward_weight = by_stage(costs.backward_weight, num_stages, "backward_weight");
  costs.activation_bytes = by_stage(costs.activation_bytes, num_stages, "activation_bytes");
  costs.boundary_bytes = by_stage(costs.boundary_bytes, num_stages, "boundary_bytes");
  check_cost(costs.launch_latency, "launch_latency");
  check_cost(costs.update, "update");
  check_cost(costs.kept_after_dgrad, "kept_after_dgrad");
  check_cost(costs.overlap, "overlap");
  require(costs.overlap <= 1, "pipeline costs: expected overlap from 0 to 1, found {}", costs.overlap);
  return costs;
}

class Simulation {
 public:
  Simulation(Program program, PipelineCosts costs)
      : program_(std::move(program)),
        costs_(std::move(costs)),
        transfers_(static_cast<size_t>(2 * program_.num_stages() * program_.num_microbatches)),
        next_(program_.ranks.size(), 0),
        free_(program_.ranks.size(), 0),
        times_(program_.ranks.size()),
        busy_(program_.ranks.size(), 0) {
    for (size_t rank = 0; rank < times_.size(); ++rank) {
      times_[rank].reserve(program_.ranks[rank].size());
    }
  }

  Timeline run() {
    std::deque<size_t> awake(program_.ranks.size());
    std::iota(awake.begin(), awake.end(), size_t{0});
    while (!awake.empty()) {
      const size_t rank = awake.front();
      awake.pop_front();
      go_on(rank, awake);
    }
    return timeline();
  }

 private:
  struct Transfer {
    double start = kNever;
    double end = kNever;
  };

  size_t host(int64_t stage) const { return static_cast<size_t>(program_.rank_of_stage[static_cast<size_t>(stage)]); }
  Transfer& transfer_to(bool forward, int64_t stage, int64_t microbatch) {
    const int64_t row = (forward ? 0 : program_.num_stages()) + stage;
    return transfers_[static_cast<size_t>(row * program_.num_microbatches + microbatch)];
  }

  // Returns the time at which the inputs of `action` from another rank arrive. Inputs from its own rank come earlier in
  // the list.
  double arrival(const Action& action) {
    const auto [kind, stage, microbatch] = action;
    if (kind == ActionKind::forward && stage > 0 && sends_forward(program_, stage - 1)) {
      return transfer_to(true, stage, microbatch).end;
    }
    if (action.is_backward() && sends_forward(program_, stage)) {
      return transfer_to(false, stage, microbatch).end;
    }
    return 0;
  }

  double seconds(const Action& action) const {
    const auto stage = static_cast<size_t>(action.stage);
    switch (action.kind) {
      case ActionKind::forward:
        return costs_.forward[stage];
      case ActionKind::backward_full:
        return costs_.backward_input[stage] + costs_.backward_weight[stage];
      case ActionKind::backward_input:
        return costs_.backward_input[stage];
      default:
        return costs_.backward_weight[stage];
    }
  }

  void send(size_t rank, const Action& action, std::deque<size_t>& awake) {
    const bool forward = action.kind == ActionKind::send_forward;
    const int64_t stage = action.stage + (forward ? 1 : -1);
    const size_t peer = host(stage);
    double duration = 0;
    if (costs_.transfer) {
      duration = costs_.transfer(static_cast<int64_t>(rank), static_cast<int64_t>(peer));
      check_cost(duration, "transfer");
    }
    double& link_free = links_[{rank, peer}];
    Transfer& transfer = transfer_to(forward, stage, action.microbatch);
    // Transfers of one link are sequential; launch latencies overlap with earlier transfers.
    transfer.start = std::max(free_[rank] + costs_.launch_latency, link_free);
    transfer.end = transfer.start + duration;
    link_free = transfer.end;
    awake.push_back(peer);
  }

  void go_on(size_t rank, std::deque<size_t>& awake) {
    const auto& list = program_.ranks[rank];
    for (; next_[rank] < list.size(); ++next_[rank]) {
      const Actions& entry = list[next_[rank]];
      // Transfers take the rank no time: a send schedules the transfer, a receive only keeps its place in the list.
      if (!entry[0].is_compute()) {
        if (entry[0].is_send()) {
          send(rank, entry[0], awake);
        }
        times_[rank].push_back({.action = entry[0], .entry = static_cast<int64_t>(next_[rank]), .start = 0, .end = 0});
        continue;
      }
      double start = free_[rank];
      for (const Action& action : entry) {
        start = std::max(start, arrival(action));
      }
      if (start == kNever) {
        return;
      }
      compute(rank, entry, start);
    }
  }

  void compute(size_t rank, const Actions& entry, double start) {
    std::vector<double> durations;
    double next = start;
    for (const Action& action : entry) {
      durations.push_back(costs_.clock ? costs_.clock->act(static_cast<int64_t>(rank), action, next) : seconds(action));
      next += durations.back();
    }
    const double sum = std::accumulate(durations.begin(), durations.end(), 0.0);
    const double longest = *std::max_element(durations.begin(), durations.end());
    // Between the sum (overlap 0) and the longest (overlap 1) of the members' times.
    const double end = start + sum - costs_.overlap * (sum - longest);
    const bool together = entry.size() > 1 && costs_.overlap > 0;
    double at = start;
    for (size_t i = 0; i < entry.size(); ++i) {
      const bool last = i + 1 == entry.size();
      const double until = together || last ? end : at + durations[i];
      times_[rank].push_back(
          {.action = entry[i],
           .entry = static_cast<int64_t>(next_[rank]),
           .start = at,
           .end = until,
           .lane = together ? static_cast<int64_t>(i) : 0,
           .lanes = together ? static_cast<int64_t>(entry.size()) : 1});
      at = together ? start : until;
    }
    busy_[rank] += end - start;
    free_[rank] = end;
  }

  // A receive is listed before its transfer's times are known, so transfers get their times at the end.
  void fill_in_transfers() {
    for (auto& list : times_) {
      for (TimedAction& timed : list) {
        const auto [kind, stage, microbatch] = timed.action;
        if (timed.action.is_compute()) {
          continue;
        }
        const bool forward = kind == ActionKind::send_forward || kind == ActionKind::receive_forward;
        const int64_t sent_by = forward ? 1 : -1;
        const Transfer& transfer = transfer_to(forward, timed.action.is_send() ? stage + sent_by : stage, microbatch);
        timed.start = transfer.start;
        timed.end = transfer.end;
      }
    }
  }

  Timeline timeline() {
    fill_in_transfers();
    Timeline result;
    for (size_t rank = 0; rank < times_.size(); ++rank) {
      const double rest = costs_.clock ? costs_.clock->finish(static_cast<int64_t>(rank), free_[rank]) : 0;
      free_[rank] += rest;
      busy_[rank] += rest;
      result.makespan = std::max(result.makespan, free_[rank]);
      const auto first = std::find_if(
          times_[rank].begin(), times_[rank].end(), [](const auto& timed) { return timed.action.is_compute(); });
      result.first_start.push_back(first == times_[rank].end() ? 0 : first->start);
      result.last_end.push_back(free_[rank]);
      result.busy.push_back(busy_[rank] + costs_.update);
      result.memory.push_back(memory_over_time(times_[rank], program_, costs_));
    }
    result.update = costs_.update;
    result.makespan += costs_.update;
    result.ranks = std::move(times_);
    result.program = std::move(program_);
    return result;
  }

  Program program_;
  PipelineCosts costs_;
  std::vector<Transfer> transfers_;  // by direction, receiving stage, micro-batch
  std::map<std::pair<size_t, size_t>, double> links_;
  std::vector<size_t> next_;
  std::vector<double> free_;
  std::vector<std::vector<TimedAction>> times_;
  std::vector<double> busy_;
};
}  // namespace

Timeline simulate(const Program& program, const PipelineCosts& costs) {
  if (program.has_communication()) {
    check_program(program);
    return Simulation(program, checked(costs, program.num_stages())).run();
  }
  return Simulation(add_communication(program), checked(costs, program.num_stages())).run();
}

}  // namespace lehr::pipeline
