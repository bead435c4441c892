#include "lehr/search/solver_questions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "lehr/base/error.h"

namespace lehr::search {

std::vector<SolverResult> solve_many(
    const SolverProblem& problem, int64_t count, int64_t min_distance, const SolverLimits& limits) {
  std::vector<SolverResult> found;
  SolverLimits next = limits;
  while (static_cast<int64_t>(found.size()) < count) {
    SolverResult result = solve(problem, next);
    if (!result.best) {
      break;
    }
    next.apart.push_back({.chosen = result.best->chosen, .distance = static_cast<size_t>(min_distance)});
    found.push_back(std::move(result));
  }
  return found;
}

std::vector<Relaxation> relaxations(const SolverProblem& problem, const SolverLimits& limits) {
  std::vector<Relaxation> all;
  for (size_t budget = 0; budget < problem.budgets.size(); ++budget) {
    if (!problem.budgets[budget].at_most) {
      continue;
    }
    // The least cost under the other budgets.
    SolverProblem cheapest = problem;
    cheapest.budgets[budget].at_most.reset();
    for (SolverGroup& group : cheapest.groups) {
      for (SolverOption& option : group.options) {
        option.loss = option.costs[budget];
      }
    }
    const SolverResult result = solve(cheapest, limits);
    all.push_back({.budget = budget});
    if (result.best) {
      all.back().least = result.best->costs[budget];
    }
  }
  return all;
}

namespace {
// Rounded up to six digits, so that the printed value is feasible too.
double rounded_up(double value) {
  if (value <= 0 || !std::isfinite(value)) {
    return value;
  }
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 5);
  return std::ceil(value / unit * (1 - 1e-15)) * unit;
}

SolverProblem with_all_limits_times(SolverProblem problem, double factor) {
  for (SolverGroup& group : problem.groups) {
    for (SolverOption& option : group.options) {
      option.loss = 0;
    }
  }
  for (SolverBudget& budget : problem.budgets) {
    if (std::isinf(factor)) {
      budget.at_most.reset();
    } else if (budget.at_most) {
      budget.at_most = *budget.at_most * factor;
    }
  }
  return problem;
}
}  // namespace

std::optional<double> joint_relaxation(const SolverProblem& problem, const SolverLimits& limits) {
  constexpr double kLargest = 1e18;
  const auto feasible = [&](double factor) {
    return solve(with_all_limits_times(problem, factor), limits).best.has_value();
  };
  if (!feasible(std::numeric_limits<double>::infinity())) {
    return std::nullopt;
  }
  double low = 1, high = 2;
  while (!feasible(high)) {
    low = high;
    high *= 2;
    if (high > kLargest) {
      return std::nullopt;
    }
  }
  while (high - low > 0.001 * low) {
    const double middle = (low + high) / 2;
    (feasible(middle) ? high : low) = middle;
  }
  return high;
}

std::string explain_infeasible(const SolverProblem& problem, const SolverLimits& limits) {
  std::string text;
  for (const Relaxation& one : relaxations(problem, limits)) {
    const SolverBudget& budget = problem.budgets[one.budget];
    const double limit = budget.at_most.value_or(std::numeric_limits<double>::infinity());
    if (one.least && *one.least > limit) {
      text += fmt::format(
          "{}{}: at most {:.6g}{} is too little; with the other budgets as they are, {:.6g}{} is the least.",
          text.empty() ? "" : " ",
          budget.name,
          limit,
          budget.unit,
          rounded_up(*one.least),
          budget.unit);
    }
  }
  if (!text.empty()) {
    return text;
  }
  const auto factor = joint_relaxation(problem, limits);
  return factor
             ? fmt::format(
                   "No larger value of one budget alone helps; there is a combination if all are multiplied by {:.6g}.",
                   rounded_up(*factor))
             : "No larger values help: lower the lower bounds of the ranges.";
}

std::vector<ShadowPrice> shadow_prices(
    const SolverProblem& problem, const SolverResult& solved, const SolverLimits& limits) {
  constexpr double kShares[] = {0.01, 0.02, 0.05, 0.1, 0.2};
  constexpr double kResolution = 1e-9;  // CBC's own
  // Both solutions may be above the best by this much.
  const double nothing = std::max(kResolution, limits.relative_gap * (solved.best ? std::abs(solved.best->loss) : 0));
  std::vector<ShadowPrice> prices;
  for (size_t budget = 0; budget < problem.budgets.size(); ++budget) {
    const auto limit = problem.budgets[budget].at_most;
    if (!limit || !solved.best) {
      continue;
    }
    ShadowPrice price{.budget = budget};
    for (const double share : kShares) {
      SolverProblem larger = problem;
      larger.budgets[budget].at_most = *limit * (1 + share);
      const SolverResult result = solve(larger, limits);
      price.share = share;
      price.more = share * *limit;
      price.worth = result.best ? std::max(0.0, solved.best->loss - result.best->loss) : 0;
      if (price.worth > nothing) {
        break;
      }
      price.worth = 0;
    }
    prices.push_back(price);
  }
  return prices;
}

std::vector<SolverResult> sweep(
    const SolverProblem& problem, size_t budget, const std::vector<double>& values, const SolverLimits& limits) {
  std::vector<SolverResult> results;
  SolverProblem changed = problem;
  for (const double value : values) {
    changed.budgets.at(budget).at_most = value;
    results.push_back(solve(changed, limits));
  }
  return results;
}

std::vector<double> sweep_values(const SolverProblem& problem, size_t budget, int64_t count) {
  double low = problem.budgets.at(budget).fixed, high = low;
  for (const SolverGroup& group : problem.groups) {
    const auto [least, most] = std::minmax_element(
        group.options.begin(), group.options.end(), [&](const SolverOption& a, const SolverOption& b) {
          return a.costs[budget] < b.costs[budget];
        });
    low += least->costs[budget];
    high += most->costs[budget];
  }
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(low + (high - low) * static_cast<double>(i) / static_cast<double>(count - 1));
  }
  return values;
}

}  // namespace lehr::search
