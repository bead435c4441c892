// The choice of one option per group with the least total loss under budgets: a multiple-choice integer program.
// Independent of models.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lehr::search {

/// One alternative of a group.
struct SolverOption {
  std::string name = {};
  double loss = 0;
  std::vector<double> costs = {};  ///< One per budget.
};

/// Exactly one of its options is chosen.
struct SolverGroup {
  std::string name = {};
  std::vector<SolverOption> options = {};
};

/// A limit on the sum of the chosen options' costs and `fixed`. Both bounds may be unset.
struct SolverBudget {
  std::string name = {};
  std::string unit = {};  ///< Put behind numbers in messages, such as " B".
  double fixed = 0;
  std::optional<double> at_least = {};
  std::optional<double> at_most = {};
};

/// A multiple-choice knapsack problem, with any number of budgets.
struct SolverProblem {
  std::vector<SolverGroup> groups = {};
  std::vector<SolverBudget> budgets = {};
};

/// One option per group, as indices, with its sums.
struct Assignment {
  std::vector<size_t> chosen = {};
  double loss = 0;
  std::vector<double> costs = {};  ///< Per budget, with its `fixed`.
};

/// An assignment that a solution must differ from, in at least `distance` groups (a no-good cut).
struct Apart {
  std::vector<size_t> chosen = {};
  size_t distance = 1;
};

/// Limits of a solution.
struct SolverLimits {
  double seconds = 60;
  double relative_gap = 0;  ///< Stop when the incumbent is at most this far above the bound, relative to the bound.
  std::vector<Apart> apart = {};
};

/// The way in which a solution ended.
enum class SolverStatus {
  optimal,    ///< Proven, up to relative_gap.
  gap_left,   ///< The time ran out; `best` may be unset.
  infeasible  ///< Proven.
};

/// Returns "optimal", "gap left" or "infeasible".
const char* name_of(SolverStatus status);

/// The best assignment that was found, and a bound on the best possible one.
struct SolverResult {
  SolverStatus status = SolverStatus::infeasible;
  std::optional<Assignment> best = {};
  double bound = 0;  ///< No assignment has a lower loss.
  double gap = 0;    ///< (loss - bound) / max(|loss|, 1e-12); 0 if proven optimal without a relative_gap.
};

/// Relative excess by which a sum may be above at_most or below at_least, for rounding.
inline constexpr double kBudgetTolerance = 1e-9;

/// Returns the sums of an assignment.
Assignment evaluate(const SolverProblem& problem, std::vector<size_t> chosen);
/// Returns whether the costs meet all budgets.
bool meets_budgets(const SolverProblem& problem, const std::vector<double>& costs);

/// Solves the program with COIN-OR CBC: branch and cut, deterministic, one thread. The costs of the result are
/// recomputed, and never exceed a budget. Throws usage errors that name group and option for a program without options,
/// for values that are not finite, and for a wrong number of costs.
SolverResult solve(const SolverProblem& problem, const SolverLimits& limits = {});

}  // namespace lehr::search
