#include "lehr/search/baselines.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "lehr/base/random.h"

namespace lehr::search {

namespace {
// By how much the costs are outside of the budgets, relative to each.
double excess(const SolverProblem& problem, const std::vector<double>& costs) {
  double sum = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (const auto most = problem.budgets[i].at_most) {
      sum += std::max(0.0, costs[i] / *most - 1);
    }
    if (const auto least = problem.budgets[i].at_least; least && *least > 0) {
      sum += std::max(0.0, 1 - costs[i] / *least);
    }
  }
  return sum;
}
}  // namespace

std::optional<Assignment> greedy(const SolverProblem& problem) {
  std::vector<size_t> chosen;
  for (const SolverGroup& group : problem.groups) {
    const auto best = std::min_element(
        group.options.begin(), group.options.end(), [](const auto& a, const auto& b) { return a.loss < b.loss; });
    chosen.push_back(static_cast<size_t>(best - group.options.begin()));
  }
  Assignment current = evaluate(problem, chosen);
  while (!meets_budgets(problem, current.costs)) {
    const double before = excess(problem, current.costs);
    double best_price = std::numeric_limits<double>::infinity();
    std::optional<Assignment> best;
    for (size_t group = 0; group < problem.groups.size(); ++group) {
      for (size_t option = 0; option < problem.groups[group].options.size(); ++option) {
        std::vector<size_t> changed = current.chosen;
        changed[group] = option;
        Assignment other = evaluate(problem, std::move(changed));
        const double saved = before - excess(problem, other.costs);
        const double price = (other.loss - current.loss) / saved;
        if (saved > 0 && price < best_price) {
          best_price = price;
          best = std::move(other);
        }
      }
    }
    if (!best) {
      return std::nullopt;
    }
    current = std::move(*best);
  }
  return current;
}

std::optional<Assignment> random_feasible(const SolverProblem& problem, uint64_t seed) {
  const RandomStream random(seed, "random_feasible");
  uint64_t draws = 0;
  const auto draw = [&](size_t count) {
    double value = 0;
    random.fill_uniform(draws++, 1, &value);
    return std::min(static_cast<size_t>(value * static_cast<double>(count)), count - 1);
  };
  Assignment current = evaluate(problem, std::vector<size_t>(problem.groups.size(), 0));
  constexpr int64_t kTries = 100'000;
  for (int64_t tries = 0; tries < kTries; ++tries) {
    if (meets_budgets(problem, current.costs)) {
      return current;
    }
    std::vector<size_t> changed = current.chosen;
    const size_t group = draw(problem.groups.size());
    changed[group] = draw(problem.groups[group].options.size());
    Assignment other = evaluate(problem, std::move(changed));
    if (excess(problem, other.costs) < excess(problem, current.costs)) {
      current = std::move(other);
    }
  }
  return std::nullopt;
}

}  // namespace lehr::search
