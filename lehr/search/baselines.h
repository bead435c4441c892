// Baselines that the solver is compared with: a greedy choice and a random one.
#pragma once

#include <cstdint>
#include <optional>

#include "lehr/search/solver.h"

namespace lehr::search {

/// Begins with the option of least loss in each group, and repeatedly takes the change with the least loss per saved
/// cost (relative to at_most, summed over exceeded budgets) until the budgets are met. Unset if it gets stuck.
std::optional<Assignment> greedy(const SolverProblem& problem);

/// Begins with the first option of each group (the teacher's) and replaces options of random groups by random cheaper
/// ones until the budgets are met. The same for a seed on every machine. Unset if it gets stuck.
std::optional<Assignment> random_feasible(const SolverProblem& problem, uint64_t seed);

}  // namespace lehr::search
