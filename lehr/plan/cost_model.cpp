#include "lehr/plan/cost_model.h"

#include <algorithm>
#include <map>

#include "lehr/plan/exposed.h"
#include "lehr/plan/links.h"

namespace lehr::plan {

ActionCost computation_of(
    const ActionMeasurement& action, const StageMeasurement& stage, double expert_share, const CostContext& context) {
  const Machine& machine = context.machine;
  const double peak = machine.peak_flops(context.compute) * machine.sustained_clock_fraction;
  const double rate = peak * machine.matmul_fraction(context.compute);
  const double expert_rate = peak * machine.expert_fraction(context.compute, stage.expert_tokens);
  const double float8_rate = machine.float8_flops(context.compute) * machine.sustained_clock_fraction;
  const double float8 = context.float8 || context.peer.float8 ? stage.float8_share : 0;
  const double linear_flops = (1 - expert_share) * action.matmul_flops;
  return {
      .matmuls = linear_flops * ((1 - float8) / rate + float8 / float8_rate),
      // Experts lose as large a part of the rate in float8 as in the dtype of other matmuls.
      .experts = expert_share * action.matmul_flops /
                 (context.peer.float8_experts ? float8_rate * expert_rate / rate : expert_rate),
      .attention = action.attention_flops / (peak * machine.attention_fraction(context.compute)),
      .pointwise =
          context.peer.pointwise_bytes * static_cast<double>(action.pointwise_bytes) / machine.memory_bandwidth()};
}

namespace {
bool names_any(const std::string& axes, std::initializer_list<const std::string*> names) {
  const std::string parted = "," + axes + ",";
  return std::any_of(names.begin(), names.end(), [&](const std::string* name) {
    return parted.find("," + *name + ",") != std::string::npos;
  });
}

// Returns whether a collective can overlap with computation: issued before it is needed, or waited for after others
// were issued.
bool overlaps(const Communication& one) {
  if (one.collective == "send" || one.collective == "receive") {
    return true;
  }
  return (one.collective == "all_gather" || one.collective == "reduce_scatter") &&
         names_any(one.axes, {&mesh::axis::fsdp, &mesh::axis::dp_shard, &mesh::axis::ep_shard});
}

// The average of the calls on idle links.
LinkTime link_time_of(const Communication& one, const CostContext& context) {
  const GroupPlacement group = place_group(one.axes, context.mesh, context.machine.ranks_per_node);
  const double sent = one.collective == "all_to_all" ? context.peer.dispatch_bytes : 1;
  LinkTime time = link_time(
      context.machine, group, one.collective, sent * static_cast<double>(one.bytes) / static_cast<double>(one.calls));
  if (context.peer.gathers_once && one.collective == "all_gather" && overlaps(one)) {
    const auto often = static_cast<double>(context.microbatches);
    time = {.latency = time.latency / often, .node = time.node / often, .network = time.network / often};
  }
  return time;
}

CommunicationCost cost_of(const Communication& one, const CostContext& context) {
  CommunicationCost cost{
      .axes = one.axes,
      .collective = one.collective,
      .bytes = static_cast<double>(one.bytes),
      .calls = static_cast<double>(one.calls)};
  if (one.calls > 0) {
    // Each call pays the latency, so the cost of the average call is multiplied.
    cost.seconds = cost.calls * link_time_of(one, context).seconds();
  }
  return cost;
}

// Overlaps `all` with `computing` seconds of computation. The exposed time is shared among the collectives that can
// overlap, in proportion to their length.
void overlap(std::vector<CommunicationCost>& all, const std::vector<bool>& overlapping, double computing) {
  double total = 0;
  double first = 0;  // the longest single call: no earlier computation to overlap with
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].exposed = all[i].seconds;
    if (overlapping[i] && all[i].calls > 0) {
      total += all[i].seconds;
      first = std::max(first, all[i].seconds / all[i].calls);
    }
  }
  // At least the first call is exposed, and the time that computation does not cover.
  const double exposed = std::max(first, total - computing);
  for (size_t i = 0; i < all.size() && total > 0; ++i) {
    if (overlapping[i]) {
      all[i].exposed = all[i].seconds * std::min(1.0, exposed / total);
    }
  }
}

// Returns, for each call, whether it is started before the action's border and waited for after it.
std::vector<bool> across_border(const ActionMeasurement& action) {
  std::vector<bool> started(action.calls.size(), false);
  std::vector<bool> across(action.calls.size(), false);
  for (size_t i = 0; i < action.events.size(); ++i) {
    const ActionEvent& event = action.events[i];
    if (event.started != ActionEvent::kNone && i < action.border) {
      started[static_cast<size_t>(event.started)] = true;
    }
    if (event.waited != ActionEvent::kNone && i >= action.border) {
      across[static_cast<size_t>(event.waited)] = started[static_cast<size_t>(event.waited)];
    }
  }
  return across;
}

// Fills in the exposed time of each kind of communication, in the order of the program, and ActionCost::across.
// Returns the seconds until the action's border.
double expose(
    ActionCost& cost,
    const ActionMeasurement& action,
    const StageMeasurement& stage,
    double expert_share,
    const CostContext& context) {
  std::vector<double> seconds;
  double sum = 0;
  for (const ActionEvent& event : action.events) {
    const ActionMeasurement part{
        .matmul_flops = event.work.matmul_flops,
        .attention_flops = event.work.attention_flops,
        .pointwise_bytes = event.work.pointwise_bytes};
    seconds.push_back(computation_of(part, stage, expert_share, context).computing());
    sum += seconds.back();
  }
  for (double& one : seconds) {
    one *= sum > 0 ? cost.computing() / sum : 0;  // spreads the layers' overhead
  }
  const std::vector<bool> across = across_border(action);
  std::vector<LinkTime> links;
  for (size_t i = 0; i < action.calls.size(); ++i) {
    links.push_back(across[i] ? LinkTime{} : link_time_of(action.calls[i], context));
  }
  const ExposedTime time = exposed_time(action, seconds, links, context.machine.communication_overlap);
  const double border = action.border > 0 ? time.by_event[action.border - 1] : 0;
  std::map<int64_t, CallAcross> found;
  for (size_t i = 0; i < action.events.size(); ++i) {
    const auto [work, started, waited] = action.events[i];
    if (started != ActionEvent::kNone && across[static_cast<size_t>(started)]) {
      const double alone = link_time_of(action.calls[static_cast<size_t>(started)], context).seconds();
      found[started] = {
          .axes = action.calls[static_cast<size_t>(started)].axes,
          .seconds = alone,
          .before = border - time.by_event[i]};
    }
    if (waited != ActionEvent::kNone && across[static_cast<size_t>(waited)]) {
      found[waited].after = time.by_event[i] - border;
    }
  }
  for (const auto& [call, one] : found) {
    cost.across.push_back(one);
  }
  for (size_t i = 0; i < action.calls.size(); ++i) {
    for (CommunicationCost& one : cost.communication) {
      if (one.axes == action.calls[i].axes && one.collective == action.calls[i].collective) {
        one.exposed += time.by_call[i];
      }
    }
  }
  return border;
}

ActionCost cost_of(
    const ActionMeasurement& action,
    const StageMeasurement& stage,
    double expert_share,
    bool weights,
    const CostContext& context) {
  const Machine& machine = context.machine;
  ActionCost cost = computation_of(action, stage, expert_share, context);
  cost.overhead = static_cast<double>(stage.num_layers) * machine.layer_overhead_us * 1e-6;
  if (weights && context.peer.accumulates_in_matmul) {
    // A gradient in the compute dtype is written and read, and its sum in float32 read and written: 12 bytes for each
    // of the 4 of a sum.
    const auto sums = static_cast<double>(stage.gradient_bytes + stage.whole_gradient_bytes);
    cost.pointwise = std::max(0.0, cost.pointwise - 3 * sums / machine.memory_bandwidth());
  }
  cost.slowest = machine.slowest_of(context.mesh.world_size()) * cost.computing();
  std::vector<bool> overlapping;
  for (const Communication& one : action.communication) {
    cost.communication.push_back(cost_of(one, context));
    overlapping.push_back(overlaps(one));
  }
  if (action.events.empty()) {
    overlap(cost.communication, overlapping, machine.communication_overlap * cost.computing());
  } else {
    expose(cost, action, stage, expert_share, context);
  }
  for (CommunicationCost& one : cost.communication) {
    one.exposed *= 1 - context.peer.overlap(one.axes);
  }
  return cost;
}

double sum_exposed(const std::vector<CommunicationCost>& all) {
  double sum = 0;
  for (const CommunicationCost& one : all) {
    sum += one.exposed;
  }
  return sum;
}

// Adds `factor` times the communication of `action` to `sums`, by axes and kind.
void add_to(std::vector<CommunicationCost>& sums, const ActionCost& action, double factor) {
  for (const CommunicationCost& one : action.communication) {
    auto found = std::find_if(sums.begin(), sums.end(), [&](const CommunicationCost& sum) {
      return sum.axes == one.axes && sum.collective == one.collective;
    });
    if (found == sums.end()) {
      found = sums.insert(found, {.axes = one.axes, .collective = one.collective});
    }
    found->bytes += factor * one.bytes;
    found->calls += factor * one.calls;
    found->seconds += factor * one.seconds;
    found->exposed += factor * one.exposed;
  }
}

// From the first forward and the last backward of a step.
void add_once_a_step(StageCost& cost, const StageMeasurement& stage, double expert_share, const CostContext& context) {
  const ActionCost first = cost_of(stage.first_forward, stage, expert_share, false, context);
  const ActionCost first_backward = cost_of(stage.first_backward, stage, expert_share, true, context);
  const ActionCost last = cost_of(stage.last_backward, stage, expert_share, true, context);
  ActionCost until = last;  // only its time until the end of the micro-batch is used
  const double backward = expose(until, stage.last_backward, stage, expert_share, context);
  const auto without_slowest = [](const ActionCost& action) { return action.computing() + action.exposed(); };
  for (const CallAcross& one : first.across) {
    cost.gathers.push_back({.seconds = one.seconds, .offset = one.after});
  }
  for (const CallAcross& one : last.across) {
    cost.reductions.push_back({.seconds = one.seconds, .offset = one.before});
    const auto& calls = cost.forward.communication;
    cost.follows_background |=
        std::any_of(calls.begin(), calls.end(), [&](const CommunicationCost& other) { return other.axes == one.axes; });
  }
  cost.first_forward = without_slowest(first) - without_slowest(cost.forward);
  cost.first_backward = without_slowest(first_backward) - without_slowest(cost.backward);
  cost.last_backward = backward - without_slowest(cost.backward);
  cost.after_backward = std::max(0.0, without_slowest(last) - backward);
  add_to(cost.per_step, first, 1);
  add_to(cost.per_step, cost.forward, -1);
  for (const ActionCost& backward_once : {first_backward, last}) {
    add_to(cost.per_step, backward_once, 1);
    add_to(cost.per_step, cost.backward, -1);
  }
  std::erase_if(cost.per_step, [](const CommunicationCost& one) { return one.calls == 0 && one.exposed == 0; });
  cost.per_step_pointwise =
      cost.first_forward + cost.first_backward + cost.last_backward + cost.after_backward - sum_exposed(cost.per_step);
}

// From sums of measurements.
void guess_once_a_step(StageCost& cost, const StageMeasurement& stage, const CostContext& context) {
  std::vector<bool> overlapping;
  for (const Communication& one : stage.per_step) {
    cost.per_step.push_back(cost_of(one, context));
    overlapping.push_back(overlaps(one) || names_any(one.axes, {&mesh::axis::dp_replicate}));
  }
  overlap(cost.per_step, overlapping, context.machine.communication_overlap * cost.backward.computing());
  if (const double whole = static_cast<double>(stage.gathered_after_forward); context.keeps_gathered && whole > 0) {
    // Parameters that stay unsharded for a whole step are all-gathered in its first forward, which was not measured.
    const GroupPlacement group = place_group(mesh::axis::fsdp, context.mesh, context.machine.ranks_per_node);
    const auto units = static_cast<double>(stage.num_layers);
    std::vector<CommunicationCost> gather{
        {.axes = mesh::axis::fsdp,
         .collective = "all_gather",
         .bytes = whole / static_cast<double>(group.size),
         .calls = units}};
    gather[0].seconds = units * collective_seconds(context.machine, group, "all_gather", gather[0].bytes / units);
    overlap(gather, {true}, context.machine.communication_overlap * cost.forward.computing());
    cost.per_step.push_back(gather[0]);
  }
  cost.after_backward = sum_exposed(cost.per_step);
}
}  // namespace

double ActionCost::exposed() const {
  return sum_exposed(communication);
}

StageCost cost_of(const StageMeasurement& stage, double expert_share, const CostContext& context) {
  const auto action = [&](const ActionMeasurement& one, bool weights) {
    return cost_of(one, stage, expert_share, weights, context);
  };
  StageCost cost{
      .forward = action(stage.forward, false),
      .backward = action(stage.backward, true),
      .backward_input = action(stage.backward_input, false),
      .backward_weight = action(stage.backward_weight, true)};
  // The norm reads gradients; the update reads them again, and reads and writes values and state.
  const double touched =
      2.0 * static_cast<double>(stage.gradient_bytes + stage.parameter_bytes + stage.optimizer_bytes) +
      2.0 * static_cast<double>(stage.compute_copy_bytes);
  cost.optimizer = touched / context.machine.memory_bandwidth();
  if (stage.last_backward.events.empty()) {
    guess_once_a_step(cost, stage, context);
  } else {
    add_once_a_step(cost, stage, expert_share, context);
  }
  return cost;
}

bool has_split_backward(const pipeline::Program& program) {
  for (const auto& rank : program.ranks) {
    for (const auto& entry : rank) {
      for (const pipeline::Action& action : entry) {
        if (action.kind == pipeline::ActionKind::backward_weight) {
          return true;
        }
      }
    }
  }
  return false;
}

pipeline::PipelineCosts pipeline_costs(
    const std::vector<const StageCost*>& stages,
    double boundary_bytes,
    const std::vector<int64_t>& rank_of_stage,
    bool splits_backward,
    const CostContext& context) {
  pipeline::PipelineCosts costs;
  costs.forward.clear();
  costs.backward_input.clear();
  costs.backward_weight.clear();
  costs.first_forward.clear();
  costs.first_backward.clear();
  costs.last_backward.clear();
  std::vector<double> updates(1 + static_cast<size_t>(*std::max_element(rank_of_stage.begin(), rank_of_stage.end())));
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const StageCost& cost = *stages[stage];
    costs.forward.push_back(cost.forward.seconds());
    costs.backward_input.push_back(splits_backward ? cost.backward_input.seconds() : cost.backward.seconds());
    costs.backward_weight.push_back(splits_backward ? cost.backward_weight.seconds() : 0);
    costs.first_forward.push_back(cost.first_forward);
    costs.first_backward.push_back(cost.first_backward);
    costs.last_backward.push_back(cost.last_backward);
    costs.gathers.push_back(cost.gathers);
    costs.reductions.push_back(cost.reductions);
    costs.follows_background.push_back(cost.follows_background);
    updates[static_cast<size_t>(rank_of_stage[stage])] += cost.update();
  }
  costs.update = *std::max_element(updates.begin(), updates.end());
  costs.background_speed = context.machine.communication_overlap;
  const Machine machine = context.machine;
  const auto mesh = context.mesh;
  costs.transfer = [machine, mesh, boundary_bytes](int64_t from, int64_t to) {
    return transfer_seconds(machine, mesh, from, to, boundary_bytes);
  };
  return costs;
}

}  // namespace lehr::plan
