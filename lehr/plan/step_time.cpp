#include "lehr/plan/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lehr/plan/links.h"
#include "lehr/plan/plan.h"

namespace lehr::plan {

namespace {
double largest_boundary(const std::vector<const PlannedStage*>& stages) {
  int64_t bytes = 0;
  for (const PlannedStage* stage : stages) {
    bytes = std::max(bytes, stage->measured.boundary_bytes);
  }
  return static_cast<double>(bytes);
}

class TimeAccount {
 public:
  void add(const ActionCost& cost) {
    shares_["matmuls"] += cost.matmuls;
    shares_["expert matmuls"] += cost.experts;
    shares_["attention"] += cost.attention;
    shares_["memory-bound operators"] += cost.pointwise;
    shares_["layer overhead"] += cost.overhead;
    shares_["waiting for the slowest rank"] += cost.slowest;
    add(cost.communication);
  }
  void add(const std::vector<CommunicationCost>& communication) {
    for (const CommunicationCost& one : communication) {
      auto [found, is_new] = sums_.try_emplace({one.axes, one.collective}, one);
      if (!is_new) {
        CommunicationCost& sum = found->second;
        sum.bytes += one.bytes;
        sum.calls += one.calls;
        sum.seconds += one.seconds;
        sum.exposed += one.exposed;
      }
      shares_["waiting for " + one.axes] += one.exposed;
    }
  }
  void add(const std::string& name, double seconds) { shares_[name] += seconds; }

  std::vector<TimeShare> shares(double step_seconds) const {
    std::vector<TimeShare> result;
    for (const auto& [name, seconds] : shares_) {
      if (seconds > 1e-6 * step_seconds) {
        result.push_back({name, seconds});
      }
    }
    std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    return result;
  }
  std::vector<CommunicationCost> communication() const {
    std::vector<CommunicationCost> result;
    for (const auto& [key, sum] : sums_) {
      result.push_back(sum);
    }
    return result;
  }

 private:
  std::map<std::string, double> shares_;
  std::map<std::pair<std::string, std::string>, CommunicationCost> sums_;
};

std::string advice(const std::string& name) {
  static const std::map<std::string, std::string> kKnown{
      {"pipeline bubble", "more micro-batches per step, another schedule, or fewer pipeline ranks make it shorter"},
      {"waiting for tp",
       "these collectives cannot overlap; fewer tensor_parallel ranks, all within a node, shorten them"},
      {"waiting for ep", "all-to-all token dispatch; expert_parallel ranks within a node shorten it"},
      {"waiting for cp", "keys and values are exchanged; fewer context_parallel ranks, or the ring method, shorten it"},
      {"attention", "it grows with training.seq_len"},
      {"memory-bound operators", "the device's memory bandwidth limits them"},
      {"layer overhead", "more tokens per micro-batch amortize it"},
      {"optimizer", "more ranks that shard a replica, or more micro-batches per step, reduce its share"},
      {"expert matmuls", "each expert has few tokens; more tokens per micro-batch make its matmuls faster"},
  };
  if (const auto found = kKnown.find(name); found != kKnown.end()) {
    return found->second;
  }
  if (name.find("ep_shard") != std::string::npos) {
    return "experts' parameters and gradients are sent for each micro-batch; more expert_parallel ranks or more tokens "
           "per micro-batch reduce its share";
  }
  return name.starts_with("waiting for") ? "parameters and gradients are sent for each micro-batch; more tokens per "
                                           "micro-batch, or fewer ranks that shard a replica, reduce its share"
                                         : "";
}

std::string bottleneck_of(const Plan& plan) {
  const auto percent = [&](const TimeShare& share) { return 100 * share.seconds / plan.step_seconds; };
  const TimeShare& first = plan.time.front();
  std::string text = fmt::format("{}, {:.0f} % of a step", first.name, percent(first));
  if (const std::string why = advice(first.name); !why.empty()) {
    text += ": " + why;
  }
  for (size_t i = 1; i < plan.time.size() && first.name == "matmuls"; ++i) {
    const std::string why = advice(plan.time[i].name);
    if (!why.empty()) {
      return text + fmt::format("; then {}, {:.0f} %: {}", plan.time[i].name, percent(plan.time[i]), why);
    }
  }
  return text;
}
}  // namespace

StepPrediction predict_step(
    const pipeline::Program& program, const std::vector<const PlannedStage*>& stages, const CostContext& context) {
  std::vector<const StageCost*> costs;
  std::vector<const StageMeasurement*> measured;
  for (const PlannedStage* stage : stages) {
    costs.push_back(&stage->cost);
    measured.push_back(&stage->measured);
  }
  const bool splits_backward = has_split_backward(program);
  auto with = pipeline_costs(costs, largest_boundary(stages), program.rank_of_stage, splits_backward, context);
  StepPrediction step;
  if (std::none_of(costs.begin(), costs.end(), [](const StageCost* cost) { return cost->passes.empty(); })) {
    const auto clock = std::make_shared<StepClock>(program, costs, context.overlap());
    with.clock = clock;
    step.clock = clock;
  }
  step.timeline = pipeline::simulate(program, with);
  step.memory = memory_by_rank(step.timeline, measured, splits_backward);
  return step;
}

void account_for_time(Plan& plan, const StepPrediction& step, const std::vector<const PlannedStage*>& stages) {
  const auto& timeline = step.timeline;
  const auto rank =
      static_cast<size_t>(std::max_element(timeline.busy.begin(), timeline.busy.end()) - timeline.busy.begin());
  TimeAccount account;
  const double boundary = largest_boundary(stages);
  CommunicationCost sends{.axes = mesh::axis::pp, .collective = "send"};
  for (const pipeline::TimedAction& timed : timeline.ranks[rank]) {
    if (timed.action.is_send()) {
      sends.bytes += boundary;
      sends.calls += 1;
      sends.seconds += timed.end - timed.start;
    }
  }
  for (const PassCost* pass : step.clock->passes(static_cast<int64_t>(rank))) {
    account.add(pass->cost);
  }
  for (const auto& [kind, seconds] : step.clock->waits(static_cast<int64_t>(rank)).exposed()) {
    account.add({CommunicationCost{.axes = kind.first, .collective = kind.second, .exposed = seconds}});
  }
  double updates = 0;
  for (const int64_t stage : timeline.program.stages_of(static_cast<int64_t>(rank))) {
    const StageCost& cost = stages[static_cast<size_t>(stage)]->cost;
    account.add("optimizer", cost.optimizer);
    updates += cost.update();
  }
  account.add("optimizer", timeline.update - updates);  // the rank waits for the rank with the longest update
  const double begun = step.clock->before_first(static_cast<int64_t>(rank));  // not idle
  account.add("pipeline bubble", timeline.makespan - timeline.busy[rank] - begun);
  plan.time = account.shares(plan.step_seconds);
  plan.communication = account.communication();
  if (sends.calls > 0) {
    plan.communication.push_back(sends);
  }
  plan.bottleneck = bottleneck_of(plan);
}

}  // namespace lehr::plan
