#include "lehr/plan/cost_model.h"

#include <algorithm>

#include "lehr/plan/links.h"

namespace lehr::plan {

ActionCost computation_of(
    const ActionMeasurement& action, const StageMeasurement& stage, double expert_share, const CostContext& context) {
  const Machine& machine = context.machine;
  const double peak = machine.peak_flops(context.compute) * machine.sustained_clock_fraction;
  const double rate = peak * machine.matmul_fraction(context.compute);
  const double expert_rate = peak * machine.expert_fraction(context.compute, stage.expert_tokens);
  const double float8_rate = machine.float8_flops(context.compute) * machine.sustained_clock_fraction;
  const double float8 = context.float8 || context.peer.float8 ? stage.weights.float8_share() : 0;
  const double float8_experts = context.peer.float8_experts ? 1 : stage.weights.float8_expert_share();
  const double linear_flops = (1 - expert_share) * action.matmul_flops;
  return {
      .matmuls = linear_flops * ((1 - float8) / rate + float8 / float8_rate),
      // Experts lose as large a part of the rate in float8 as in the dtype of other matmuls.
      .experts =
          expert_share * action.matmul_flops / expert_rate * (1 - float8_experts + float8_experts * rate / float8_rate),
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
  const bool replicas = one.collective.starts_with("all_reduce") && names_any(one.axes, {&mesh::axis::dp_replicate});
  const double sent = one.collective == "all_to_all" ? context.peer.dispatch_bytes
                      : replicas                     ? context.peer.replicate_bytes
                      : one.collective == "all_gather" && one.axes == mesh::axis::tp
                          ? context.peer.tensor_parallel_gather_bytes
                      : one.axes == mesh::axis::cp ? context.peer.context_parallel_bytes
                                                   : 1;
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

// Spreads the computation of `cost`, with the layers' overhead, over the events of its action.
TimedPass timed(
    const ActionCost& cost,
    const ActionMeasurement& action,
    const StageMeasurement& stage,
    double expert_share,
    const CostContext& context) {
  TimedPass pass{.events = action.events};
  double sum = 0;
  for (const ActionEvent& event : action.events) {
    const ActionMeasurement part{
        .matmul_flops = event.work.matmul_flops,
        .attention_flops = event.work.attention_flops,
        .pointwise_bytes = event.work.pointwise_bytes};
    pass.seconds.push_back(computation_of(part, stage, expert_share, context).computing());
    sum += pass.seconds.back();
  }
  for (double& one : pass.seconds) {
    one *= sum > 0 ? cost.computing() / sum : 0;
  }
  for (const Communication& call : action.calls) {
    pass.calls.push_back(
        {.axes = call.axes,
         .collective = call.collective,
         .time = link_time_of(call, context),
         .covered = context.peer.overlap(call.axes)});
  }
  return pass;
}

// Fills in the exposed time of each kind of communication, if the rank does nothing else.
void expose(ActionCost& cost, const TimedPass& pass, const CostContext& context) {
  RankPasses rank(context.overlap());
  StageCalls calls;
  rank.run(pass, 0, pass.events.size(), calls);
  for (CommunicationCost& one : cost.communication) {
    const auto found = rank.exposed().find({one.axes, one.collective});
    one.exposed = found == rank.exposed().end() ? 0 : found->second;
  }
}

ActionCost cost_of(
    const ActionMeasurement& action,
    const StageMeasurement& stage,
    double expert_share,
    bool weights,
    const CostContext& context) {
  const Machine& machine = context.machine;
  ActionCost cost = computation_of(action, stage, expert_share, context);
  const auto expert_layers = context.peer.cuda_graphs ? 0 : static_cast<double>(stage.num_expert_layers);
  cost.overhead = 1e-6 * (static_cast<double>(stage.num_layers) * machine.layer_overhead_us +
                          expert_layers * machine.expert_layer_overhead_us);
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
    overlap(cost.communication, overlapping, context.overlap() * cost.computing());
    for (CommunicationCost& one : cost.communication) {
      one.exposed *= 1 - context.peer.overlap(one.axes);
    }
  } else {
    expose(cost, timed(cost, action, stage, expert_share, context), context);
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

// The exposed seconds of collectives once per step, from sums of measurements.
double guess_once_a_step(const StageCost& cost, const StageMeasurement& stage, const CostContext& context) {
  std::vector<CommunicationCost> sums;
  std::vector<bool> overlapping;
  for (const Communication& one : stage.per_step) {
    sums.push_back(cost_of(one, context));
    overlapping.push_back(overlaps(one) || names_any(one.axes, {&mesh::axis::dp_replicate}));
  }
  overlap(sums, overlapping, context.overlap() * cost.backward.computing());
  double exposed = sum_exposed(sums);
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
    overlap(gather, {true}, context.overlap() * cost.forward.computing());
    exposed += gather[0].exposed;
  }
  return exposed;
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
  // The norm reads gradients; the update reads them again, and reads and writes trained values and state.
  const double touched = 2.0 * static_cast<double>(stage.gradient_bytes + stage.trained_bytes + stage.optimizer_bytes) +
                         2.0 * static_cast<double>(stage.compute_copy_bytes);
  cost.optimizer = touched / context.machine.memory_bandwidth();
  for (const auto& [place, measured] : stage.passes) {
    const bool weights =
        place.kind != pipeline::ActionKind::forward && place.kind != pipeline::ActionKind::backward_input;
    PassCost& pass = cost.passes[place];
    pass.cost = action(measured, weights);
    pass.timed = timed(pass.cost, measured, stage, expert_share, context);
    pass.border = measured.border;
    for (CommunicationCost& one : pass.cost.communication) {
      one.exposed = 0;
    }
  }
  if (cost.passes.empty()) {
    cost.after_backward = guess_once_a_step(cost, stage, context);
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
  std::vector<double> updates(1 + static_cast<size_t>(*std::max_element(rank_of_stage.begin(), rank_of_stage.end())));
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const StageCost& cost = *stages[stage];
    costs.forward.push_back(cost.forward.seconds());
    costs.backward_input.push_back(splits_backward ? cost.backward_input.seconds() : cost.backward.seconds());
    costs.backward_weight.push_back(splits_backward ? cost.backward_weight.seconds() : 0);
    updates[static_cast<size_t>(rank_of_stage[stage])] += cost.update();
  }
  costs.update = *std::max_element(updates.begin(), updates.end());
  const Machine machine = context.machine;
  const auto mesh = context.mesh;
  costs.transfer = [machine, mesh, boundary_bytes](int64_t from, int64_t to) {
    return transfer_seconds(machine, mesh, from, to, boundary_bytes);
  };
  return costs;
}

}  // namespace lehr::plan
