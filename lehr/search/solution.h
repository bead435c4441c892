// From scores and costs of variants to the best combinations under budgets.
#pragma once

#include <string>
#include <vector>

#include "lehr/search/scores.h"
#include "lehr/search/search_config.h"
#include "lehr/search/solver.h"

namespace lehr::search {

/// A combination of variants.
struct Solution {
  Choice choice;
  double predicted = 0;  ///< Objective of the base, plus the change that each variant makes alone.
  Cost cost;
};

/// The program to solve: a group per sub-block that has a choice, an option per variant. The loss of a variant is the
/// objective of the base (the teacher, or an earlier choice) in which it replaces its sub-block, minus that of the
/// base.
SolverProblem problem_of(
    const SearchSpace& space,
    const SpaceScores& scores,
    const CostTable& costs,
    const std::vector<Limit>& limits,
    Objective objective);

/// Returns the solution that an assignment of problem_of stands for.
Solution solution_of(
    const SearchSpace& space,
    const SpaceScores& scores,
    const CostTable& costs,
    const Assignment& assignment,
    Objective objective);

}  // namespace lehr::search
