#include "lehr/search/solver.h"

#include <Cbc_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/metric/throughput.h"

namespace lehr::search {

namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();
// CBC ignores improvements below 1e-5, so losses are scaled up until that is negligible.
constexpr double kLargestObjective = 1e5;

void check(const SolverProblem& problem) {
  require(!problem.groups.empty(), "solver: there is no group to choose from");
  for (const SolverGroup& group : problem.groups) {
    require(!group.options.empty(), "solver: group '{}' has no option", group.name);
    for (const SolverOption& option : group.options) {
      require(
          option.costs.size() == problem.budgets.size(),
          "solver: option '{}' of group '{}': expected {} costs, one per budget, found {}",
          option.name,
          group.name,
          problem.budgets.size(),
          option.costs.size());
      const bool finite =
          std::isfinite(option.loss) &&
          std::all_of(option.costs.begin(), option.costs.end(), [](double cost) { return std::isfinite(cost); });
      require(finite, "solver: option '{}' of group '{}': its loss or a cost is not finite", option.name, group.name);
    }
  }
}

void check(const SolverProblem& problem, const Apart& apart) {
  require(
      apart.chosen.size() == problem.groups.size(),
      "solver: an assignment to stay apart from has {} groups, expected {}",
      apart.chosen.size(),
      problem.groups.size());
}

class KeepInterruptHandler {
 public:
  KeepInterruptHandler() { sigaction(SIGINT, nullptr, &former_); }
  ~KeepInterruptHandler() { sigaction(SIGINT, &former_, nullptr); }
  KeepInterruptHandler(const KeepInterruptHandler&) = delete;
  KeepInterruptHandler& operator=(const KeepInterruptHandler&) = delete;

 private:
  struct sigaction former_ = {};
};

// The program as CBC takes it: a column per option; rows, and the entries of each column.
class Program {
 public:
  Program(const SolverProblem& problem, const std::vector<Apart>& apart) : problem_(problem) {
    for (const SolverGroup& group : problem.groups) {
      first_column_.push_back(static_cast<int>(objective_.size()));
      for (const SolverOption& option : group.options) {
        objective_.push_back(option.loss);
      }
    }
    entries_.resize(objective_.size());
    for (size_t group = 0; group < problem.groups.size(); ++group) {
      const int row = add_row(1, 1);
      for (size_t option = 0; option < problem.groups[group].options.size(); ++option) {
        entries_[column(group, option)].emplace_back(row, 1.0);
      }
    }
    for (size_t budget = 0; budget < problem.budgets.size(); ++budget) {
      add_budget(budget);
    }
    for (const Apart& other : apart) {
      const int row = add_row(-kInfinity, static_cast<double>(problem.groups.size() - other.distance));
      for (size_t group = 0; group < problem.groups.size(); ++group) {
        entries_[column(group, other.chosen[group])].emplace_back(row, 1.0);
      }
    }
  }

  SolverResult solve(double seconds, double relative_gap) const {
    // CBC has global variables, and sets a handler of SIGINT without restoring the former one.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const KeepInterruptHandler keep;
    const std::unique_ptr<Cbc_Model, decltype(&Cbc_deleteModel)> model(Cbc_newModel(), &Cbc_deleteModel);
    load(model.get());
    Cbc_setLogLevel(model.get(), 0);
    // CBC 2.10 loses feasible solutions in its preprocessing of ranges: 5 of 2,000 random programs.
    Cbc_setParameter(model.get(), "preprocess", "off");
    Cbc_setParameter(model.get(), "timeMode", "elapsed");
    Cbc_setMaximumSeconds(model.get(), seconds);
    Cbc_setAllowableFractionGap(model.get(), relative_gap);
    Cbc_solve(model.get());
    SolverResult result;
    const bool infeasible = Cbc_isProvenInfeasible(model.get()) != 0;
    const bool found = !infeasible && Cbc_getNumIntegers(model.get()) > 0 && Cbc_bestSolution(model.get()) != nullptr;
    if (!found) {
      result.status = infeasible ? SolverStatus::infeasible : SolverStatus::gap_left;
      result.bound = infeasible ? kInfinity : Cbc_getBestPossibleObjValue(model.get()) / scale();
      return result;
    }
    result.best = evaluate(problem_, chosen(Cbc_bestSolution(model.get())));
    const bool optimal = Cbc_isProvenOptimal(model.get()) != 0;
    result.status = optimal ? SolverStatus::optimal : SolverStatus::gap_left;
    result.bound = std::min(Cbc_getBestPossibleObjValue(model.get()) / scale(), result.best->loss);
    if (optimal && relative_gap == 0) {
      result.bound = result.best->loss;
    }
    result.gap = (result.best->loss - result.bound) / std::max(std::abs(result.best->loss), 1e-12);
    return result;
  }

 private:
  size_t column(size_t group, size_t option) const { return static_cast<size_t>(first_column_[group]) + option; }

  int add_row(double low, double high) {
    row_low_.push_back(low);
    row_high_.push_back(high);
    return static_cast<int>(row_low_.size()) - 1;
  }

  // Scaled so that the largest cost is 1, whatever the unit: bytes are 1e12 and seconds 1e-3.
  void add_budget(size_t budget) {
    const SolverBudget& limit = problem_.budgets[budget];
    double largest = 0;
    for (const SolverGroup& group : problem_.groups) {
      for (const SolverOption& option : group.options) {
        largest = std::max(largest, std::abs(option.costs[budget]));
      }
    }
    const double factor = largest > 0 ? 1 / largest : 1;
    const double low = limit.at_least ? (*limit.at_least - limit.fixed) * factor : -kInfinity;
    const double high = limit.at_most ? (*limit.at_most - limit.fixed) * factor : kInfinity;
    const double slack = kBudgetTolerance * (1 + std::max(std::isfinite(high) ? std::abs(high) : 0, 0.0));
    const int row = add_row(low - slack, high + slack);
    for (size_t group = 0; group < problem_.groups.size(); ++group) {
      for (size_t option = 0; option < problem_.groups[group].options.size(); ++option) {
        entries_[column(group, option)].emplace_back(
            row, factor * problem_.groups[group].options[option].costs[budget]);
      }
    }
  }

  double scale() const {
    double largest = 0;
    for (const double loss : objective_) {
      largest = std::max(largest, std::abs(loss));
    }
    return largest > 0 ? kLargestObjective / largest : 1;
  }

  void load(Cbc_Model* model) const {
    std::vector<int> starts{0}, rows;
    std::vector<double> values, objective;
    for (size_t i = 0; i < entries_.size(); ++i) {
      for (const auto& [row, value] : entries_[i]) {
        rows.push_back(row);
        values.push_back(value);
      }
      starts.push_back(static_cast<int>(rows.size()));
      objective.push_back(objective_[i] * scale());
    }
    const std::vector<double> zeros(entries_.size(), 0), ones(entries_.size(), 1);
    Cbc_loadProblem(
        model,
        static_cast<int>(entries_.size()),
        static_cast<int>(row_low_.size()),
        starts.data(),
        rows.data(),
        values.data(),
        zeros.data(),
        ones.data(),
        objective.data(),
        row_low_.data(),
        row_high_.data());
    for (size_t i = 0; i < entries_.size(); ++i) {
      Cbc_setInteger(model, static_cast<int>(i));
    }
  }

  std::vector<size_t> chosen(const double* values) const {
    std::vector<size_t> chosen;
    for (size_t group = 0; group < problem_.groups.size(); ++group) {
      const double* first = values + first_column_[group];
      chosen.push_back(
          static_cast<size_t>(std::max_element(first, first + problem_.groups[group].options.size()) - first));
    }
    return chosen;
  }

  const SolverProblem& problem_;
  std::vector<int> first_column_;
  std::vector<double> objective_;
  std::vector<std::vector<std::pair<int, double>>> entries_;  // by column: row and value
  std::vector<double> row_low_, row_high_;
};

}  // namespace

const char* name_of(SolverStatus status) {
  switch (status) {
    case SolverStatus::optimal:
      return "optimal";
    case SolverStatus::gap_left:
      return "gap left";
    case SolverStatus::infeasible:
      break;
  }
  return "infeasible";
}

Assignment evaluate(const SolverProblem& problem, std::vector<size_t> chosen) {
  Assignment assignment{.chosen = std::move(chosen)};
  for (const SolverBudget& budget : problem.budgets) {
    assignment.costs.push_back(budget.fixed);
  }
  for (size_t group = 0; group < problem.groups.size(); ++group) {
    const SolverOption& option = problem.groups[group].options.at(assignment.chosen.at(group));
    assignment.loss += option.loss;
    for (size_t budget = 0; budget < problem.budgets.size(); ++budget) {
      assignment.costs[budget] += option.costs[budget];
    }
  }
  return assignment;
}

bool meets_budgets(const SolverProblem& problem, const std::vector<double>& costs) {
  for (size_t i = 0; i < problem.budgets.size(); ++i) {
    const SolverBudget& budget = problem.budgets[i];
    if ((budget.at_most && costs[i] > *budget.at_most + kBudgetTolerance * std::abs(*budget.at_most)) ||
        (budget.at_least && costs[i] < *budget.at_least - kBudgetTolerance * std::abs(*budget.at_least))) {
      return false;
    }
  }
  return true;
}

SolverResult solve(const SolverProblem& problem, const SolverLimits& limits) {
  check(problem);
  std::vector<Apart> apart;
  for (const Apart& other : limits.apart) {
    check(problem, other);
    if (other.distance > problem.groups.size()) {
      return {.status = SolverStatus::infeasible, .best = {}, .bound = kInfinity};
    }
    apart.push_back(other);
  }
  const double deadline = metric::ThroughputMeter::steady_seconds() + limits.seconds;
  while (true) {
    const SolverResult result =
        Program(problem, apart)
            .solve(std::max(deadline - metric::ThroughputMeter::steady_seconds(), 0.01), limits.relative_gap);
    if (!result.best || meets_budgets(problem, result.best->costs)) {
      return result;
    }
    // CBC keeps rows to 1e-6 only. What exceeds a budget by less is excluded by name.
    apart.push_back({.chosen = result.best->chosen, .distance = 1});
  }
}

}  // namespace lehr::search
