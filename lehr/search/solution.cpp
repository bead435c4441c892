#include "lehr/search/solution.h"

#include <map>
#include <tuple>

#include "lehr/base/error.h"

namespace lehr::search {

namespace {
using pretrained::kSubblocks;
using pretrained::Subblock;

const char* unit_of(CostKind kind) {
  switch (kind) {
    case CostKind::memory:
    case CostKind::kv_cache:
      return " B";
    case CostKind::prefill_seconds:
    case CostKind::decode_seconds:
      return " s";
    default:
      return "";
  }
}
}  // namespace

SolverProblem problem_of(
    const SearchSpace& space,
    const SpaceScores& scores,
    const CostTable& costs,
    const std::vector<Limit>& limits,
    Objective objective) {
  SolverProblem problem;
  const Cost teacher = costs.of(teacher_choice(space));
  for (const Limit& limit : limits) {
    SolverBudget budget{
        .name = name_of(limit.kind),
        .unit = unit_of(limit.kind),
        .fixed = costs.fixed.of(limit.kind),
        .at_most = limit.most.of(teacher.of(limit.kind))};
    if (limit.least) {
      budget.at_least = limit.least->of(teacher.of(limit.kind));
    }
    problem.budgets.push_back(std::move(budget));
  }
  std::map<std::tuple<int64_t, Subblock, size_t>, double> losses;  // that of the base's own variants is 0
  const double own = objective_of(scores.of_base, objective);
  for (const auto& [place, sums] : scores.of) {
    losses[{place.layer, place.subblock, place.variant}] = objective_of(sums, objective) - own;
  }
  for (size_t layer = 0; layer < space.size(); ++layer) {
    for (const Subblock subblock : kSubblocks) {
      SolverGroup group{.name = fmt::format("layer {} {}", layer, pretrained::name_of(subblock))};
      const auto& variants = space[layer].of(subblock);
      for (size_t variant = 0; variant < variants.size(); ++variant) {
        const Place place{.layer = static_cast<int64_t>(layer), .subblock = subblock, .variant = variant};
        SolverOption option{.name = variants[variant].name};
        const auto loss = losses.find({place.layer, subblock, variant});
        option.loss = loss == losses.end() ? 0 : loss->second;
        for (const Limit& limit : limits) {
          option.costs.push_back(costs.of(place).of(limit.kind));
        }
        group.options.push_back(std::move(option));
      }
      problem.groups.push_back(std::move(group));
    }
  }
  return problem;
}

Solution solution_of(
    const SearchSpace& space,
    const SpaceScores& scores,
    const CostTable& costs,
    const Assignment& assignment,
    Objective objective) {
  Solution solution{
      .choice = teacher_choice(space), .predicted = objective_of(scores.of_base, objective) + assignment.loss};
  for (size_t group = 0; group < assignment.chosen.size(); ++group) {
    const auto layer = static_cast<int64_t>(group / 2);
    solution.choice.of({.layer = layer, .subblock = kSubblocks[group % 2]}) = assignment.chosen[group];
  }
  solution.cost = costs.of(solution.choice);
  return solution;
}

}  // namespace lehr::search
