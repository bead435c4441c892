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
#include "lehr/pipeline/background.h"
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

// Returns the values of all stages, which may be below 0; a single value is repeated.
std::vector<double> differences(const std::vector<double>& values, int64_t num_stages, std::string_view name) {
  require(
      values.size() == 1 || static_cast<int64_t>(values.size()) == num_stages,
      "pipeline costs: expected 1 or {} values for {}, one per stage, found {}",
      num_stages,
      name,
      values.size());
  return values.size() == 1 ? std::vector<double>(static_cast<size_t>(num_stages), values[0]) : values;
}

std::vector<double> by_stage(const std::vector<double>& values, int64_t num_stages, std::string_view name) {
  for (const double value : values) {
    check_cost(value, name);
  }
  return differences(values, num_stages, name);
}

void check_background(std::vector<std::vector<Background>>& by_stage, int64_t num_stages, std::string_view name) {
  require(
      by_stage.empty() || static_cast<int64_t>(by_stage.size()) == num_stages,
      "pipeline costs: expected {} lists of {}, one per stage, or none, found {}",
      num_stages,
      name,
      by_stage.size());
  by_stage.resize(static_cast<size_t>(num_stages));
  for (const auto& stage : by_stage) {
    for (const Background& one : stage) {
      check_cost(one.seconds, name);
      check_cost(one.offset, name);
    }
  }
}

PipelineCosts checked(PipelineCosts costs, int64_t num_stages) {
  costs.forward = by_stage(costs.forward, num_stages, "forward");
  costs.backward_input = by_stage(costs.backward_input, num_stages, "backward_input");
  costs.backward_weight = by_stage(costs.backward_weight, num_stages, "backward_weight");
  costs.first_forward = differences(costs.first_forward, num_stages, "first_forward");
  costs.first_backward = differences(costs.first_backward, num_stages, "first_backward");
  costs.last_backward = differences(costs.last_backward, num_stages, "last_backward");
  costs.activation_bytes = by_stage(costs.activation_bytes, num_stages, "activation_bytes");
  costs.boundary_bytes = by_stage(costs.boundary_bytes, num_stages, "boundary_bytes");
  check_background(costs.gathers, num_stages, "gathers");
  check_background(costs.reductions, num_stages, "reductions");
  check_cost(costs.background_speed, "background_speed");
  costs.follows_background.resize(static_cast<size_t>(num_stages), false);
  check_cost(costs.launch_latency, "launch_latency");
  check_cost(costs.update, "update");
  check_cost(costs.kept_after_dgrad, "kept_after_dgrad");
  check_cost(costs.overlap, "overlap");
  require(costs.overlap <= 1, "pipeline costs: expected overlap from 0 to 1, found {}", costs.overlap);
  return costs;
}

bool completes_backward(const Action& action) {
  return action.kind == ActionKind::backward_full || action.kind == ActionKind::backward_weight;
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
        busy_(program_.ranks.size(), 0),
        forwards_(static_cast<size_t>(program_.num_stages()), 0),
        backwards_(static_cast<size_t>(program_.num_stages()), 0),
        background_(program_.ranks.size(), BackgroundQueue(costs_.background_speed)),
        gather_waits_(program_.ranks.size(), 0) {
    for (size_t rank = 0; rank < times_.size(); ++rank) {
      times_[rank].reserve(program_.ranks[rank].size());
    }
    for (int64_t stage = 0; stage < program_.num_stages(); ++stage) {
      for (const Background& gather : costs_.gathers[static_cast<size_t>(stage)]) {
        background_[host(stage)].start(gather.seconds);
      }
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
    const double first = forwards_[stage] == 0 ? costs_.first_forward[stage] : 0;
    const double once = (backwards_[stage] == 0 ? costs_.first_backward[stage] : 0) +
                        (backwards_[stage] + 1 == program_.num_microbatches ? costs_.last_backward[stage] : 0);
    switch (action.kind) {
      case ActionKind::forward:
        return std::max(0.0, costs_.forward[stage] + first);
      case ActionKind::backward_full:
        return std::max(0.0, costs_.backward_input[stage] + costs_.backward_weight[stage] + once);
      case ActionKind::backward_input:
        return costs_.backward_input[stage];
      default:
        return std::max(0.0, costs_.backward_weight[stage] + once);
    }
  }

  void count(const Action& action) {
    forwards_[static_cast<size_t>(action.stage)] += action.kind == ActionKind::forward ? 1 : 0;
    backwards_[static_cast<size_t>(action.stage)] += completes_backward(action) ? 1 : 0;
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

  // The seconds of an action with its waits for gathers. Gathers and reductions of the rank go on meanwhile.
  double pass(size_t rank, const Action& action) {
    const auto stage = static_cast<size_t>(action.stage);
    BackgroundQueue& background = background_[rank];
    const double own = seconds(action);
    double at = 0;
    double waits = 0;
    const auto compute_until = [&](double until) {
      background.compute(std::max(0.0, std::min(until, own) - at));
      at = std::max(at, std::min(until, own));
    };
    if (action.kind == ActionKind::forward && forwards_[stage] == 0) {
      for (const Background& gather : costs_.gathers[stage]) {
        compute_until(gather.offset);
        waits += background.wait_for_next();
      }
    } else if (costs_.follows_background[stage] && action.kind != ActionKind::backward_weight) {
      waits += background.wait_for_all();
    }
    if (completes_backward(action) && backwards_[stage] + 1 == program_.num_microbatches) {
      for (const Background& reduction : costs_.reductions[stage]) {
        compute_until(own - reduction.offset);
        background.start(reduction.seconds);
      }
    }
    compute_until(own);
    gather_waits_[rank] += waits;
    return own + waits;
  }

  void compute(size_t rank, const Actions& entry, double start) {
    background_[rank].idle(start - free_[rank]);
    std::vector<double> durations;
    for (const Action& action : entry) {
      durations.push_back(pass(rank, action));
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
    for (const Action& action : entry) {
      count(action);
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
      const double reductions = background_[rank].wait_for_all();
      free_[rank] += reductions;
      busy_[rank] += reductions;
      result.reduction_waits.push_back(reductions);
      result.makespan = std::max(result.makespan, free_[rank]);
      const auto first = std::find_if(
          times_[rank].begin(), times_[rank].end(), [](const auto& timed) { return timed.action.is_compute(); });
      result.first_start.push_back(first == times_[rank].end() ? 0 : first->start);
      result.last_end.push_back(free_[rank]);
      result.busy.push_back(busy_[rank] + costs_.update);
      result.memory.push_back(memory_over_time(times_[rank], program_, costs_));
    }
    result.gather_waits = gather_waits_;
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
  std::vector<int64_t> forwards_;   // by stage: those that were timed,
  std::vector<int64_t> backwards_;  // and complete backwards
  std::vector<BackgroundQueue> background_;
  std::vector<double> gather_waits_;
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
