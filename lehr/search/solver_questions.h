// Questions about a solved program: more solutions, the shadow prices of budgets, the budgets to relax.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/search/solver.h"

namespace lehr::search {

/// Returns up to `count` solutions, the best first, each of which differs from all earlier ones in at least
/// `min_distance` groups. Fewer if there are no more.
std::vector<SolverResult> solve_many(
    const SolverProblem& problem, int64_t count, int64_t min_distance, const SolverLimits& limits);

/// The change of a single budget that makes a program feasible.
struct Relaxation {
  size_t budget = 0;
  std::optional<double> least = {};  ///< The least at_most that is feasible; unset: no value of this budget helps.
};

/// Returns a relaxation for each budget with at_most.
std::vector<Relaxation> relaxations(const SolverProblem& problem, const SolverLimits& limits);

/// Returns the smallest factor of all at_most together with which a solution exists, to 0.1 %. Unset if no factor
/// helps.
std::optional<double> joint_relaxation(const SolverProblem& problem, const SolverLimits& limits);

/// Returns one sentence per budget with at_most that helps alone: "memory: at most 1.2e+09 B is too little; ...,
/// 1.4e+09 B is the least". If none does, one on all of them together.
std::string explain_infeasible(const SolverProblem& problem, const SolverLimits& limits);

/// The change of the least loss if a budget grows.
struct ShadowPrice {
  size_t budget = 0;
  double share = 0;  ///< The first of 1, 2, 5, 10 and 20 % with which the loss falls; the last if it never does.
  double more = 0;   ///< That share of at_most.
  double worth = 0;  ///< The decrease of the least loss.
};

/// Returns the price of each budget with at_most, given the program's solution.
std::vector<ShadowPrice> shadow_prices(
    const SolverProblem& problem, const SolverResult& solved, const SolverLimits& limits);

/// Solves the program with each value as the at_most of one budget. Those without a solution have status infeasible.
std::vector<SolverResult> sweep(
    const SolverProblem& problem, size_t budget, const std::vector<double>& values, const SolverLimits& limits);

/// Returns `count` values for a sweep, ascending: from the least to the largest possible cost.
std::vector<double> sweep_values(const SolverProblem& problem, size_t budget, int64_t count = 12);

}  // namespace lehr::search
