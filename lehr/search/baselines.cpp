#include "lehr/search/baselines.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "lehr/base/error.h"
#include "lehr/base/random.h"
#include "lehr/base/value_of.h"

namespace lehr::search {

namespace {
// A partial assignment: the choice of the last group, and the point of the frontier before it.
struct Point {
  double cost = 0;
  double loss = 0;
  size_t option = 0;
  size_t before = 0;
};

// Drops points that another one beats in cost and loss.
void keep_frontier(std::vector<Point>& points) {
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) {
    return a.cost < b.cost || (a.cost == b.cost && a.loss < b.loss);
  });
  double best = std::numeric_limits<double>::infinity();
  std::erase_if(points, [&](const Point& point) {
    const bool beaten = point.loss >= best;
    best = std::min(best, point.loss);
    return beaten;
  });
}

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

std::optional<Assignment> exact_for_one_budget(const SolverProblem& problem, int64_t most_points) {
  require(
      problem.budgets.size() == 1 && problem.budgets[0].at_most && !problem.budgets[0].at_least,
      "exact_for_one_budget: expected one budget with at_most alone");
  const double limit = value_of(problem.budgets[0].at_most, "exact_for_one_budget: at_most") * (1 + kBudgetTolerance);
  std::vector<std::vector<Point>> frontiers{{{.cost = problem.budgets[0].fixed}}};
  for (const SolverGroup& group : problem.groups) {
    std::vector<Point> next;
    const std::vector<Point>& last = frontiers.back();
    for (size_t before = 0; before < last.size(); ++before) {
      for (size_t option = 0; option < group.options.size(); ++option) {
        next.push_back(
            {.cost = last[before].cost + group.options[option].costs[0],
             .loss = last[before].loss + group.options[option].loss,
             .option = option,
             .before = before});
      }
    }
    keep_frontier(next);
    require(
        static_cast<int64_t>(next.size()) <= most_points,
        "exact_for_one_budget: a frontier has {} points; use solve()",
        next.size());
    frontiers.push_back(std::move(next));
  }
  const std::vector<Point>& last = frontiers.back();
  // Ascending cost, descending loss: the last one within the limit is the best.
  const auto above = std::find_if(last.begin(), last.end(), [&](const Point& point) { return point.cost > limit; });
  if (above == last.begin()) {
    return std::nullopt;
  }
  std::vector<size_t> chosen(problem.groups.size());
  size_t at = static_cast<size_t>(above - last.begin()) - 1;
  for (size_t group = problem.groups.size(); group > 0; --group) {
    chosen[group - 1] = frontiers[group][at].option;
    at = frontiers[group][at].before;
  }
  return evaluate(problem, std::move(chosen));
}

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
