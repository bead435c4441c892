// The stages of a search.
#include <algorithm>
#include <array>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/base/value_of.h"
#include "lehr/config/json.h"
#include "lehr/config/node_list.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/prune/score_model.h"
#include "lehr/search/baselines.h"
#include "lehr/search/child.h"
#include "lehr/search/puzzletron_files.h"
#include "lehr/search/report.h"
#include "lehr/search/search.h"

namespace lehr::search {

namespace {
namespace fs = std::filesystem;

constexpr const char* kCostsFile = "costs.json";

Node to_node(const PartSeconds& part) {
  return node_list(std::array{part.prefill, part.decode});
}

Node to_node(const Cost& cost) {
  return to_node(PartSeconds{.prefill = cost.prefill_seconds, .decode = cost.decode_seconds});
}

Node to_node(const std::vector<std::vector<Cost>>& costs) {
  return node_list(costs, [](const std::vector<Cost>& layer) {
    return node_list(layer, [](const Cost& cost) { return to_node(cost); });
  });
}

void set_seconds(const Node& seconds, Cost& cost) {
  cost.prefill_seconds = seconds.at(0).as_double();
  cost.decode_seconds = seconds.at(1).as_double();
}

void set_seconds(const Node& layers, std::vector<std::vector<Cost>>& costs) {
  for (size_t layer = 0; layer < costs.size(); ++layer) {
    for (size_t i = 0; i < costs[layer].size(); ++i) {
      set_seconds(layers.at(layer).at(i), costs[layer][i]);
    }
  }
}
}  // namespace

namespace {
// Throws if the teacher meets the limits, those of measured times only if `measured`.
void require_less_than_teacher(const std::vector<Limit>& limits, const Cost& teacher, bool measured) {
  const bool meets = std::all_of(limits.begin(), limits.end(), [&](const Limit& limit) {
    const double cost = teacher.of(limit.kind);
    return (measured || !is_measured(limit.kind)) && cost <= limit.most.of(cost) &&
           (!limit.least || cost >= limit.least->of(cost));
  });
  require(
      !meets,
      "budget: the teacher meets it already, so there is nothing to make smaller; use less than its {}",
      with_unit(limits.front().kind, teacher.of(limits.front().kind)));
}
}  // namespace

namespace {
// How far the chosen combination's sum of scores is from the lowest one.
std::string distance_from_best_sum(Method method, const SearchResults& results, Objective objective) {
  const SolverResult& solved = results.solved;
  if (method == Method::exact || !solved.best) {
    return fmt::format("the sum of scores is at most {:.2g} % above the bound", 100 * solved.gap);
  }
  return fmt::format(
      "the sum of scores is {:.4g}, with method \"exact\" {:.4g}",
      results.candidates.front().solution.predicted - objective_of(results.scores.of_base, objective),
      solved.best->loss);
}
}  // namespace

// With the teacher's scores unknown, all combinations are alike, and any that meets the budgets will do.
void Search::check_budgets() const {
  const SearchSpace space = make_space(config_.space, pieces_.blocks(), equal_scores(pieces_.blocks()));
  const CostTable costs = count_costs(pieces_, space, workload());
  std::vector<Limit> limits = config_.budget.limits();
  require_less_than_teacher(limits, costs.of(teacher_choice(space)), false);
  std::erase_if(limits, [](const Limit& limit) { return is_measured(limit.kind); });
  const SpaceScores equal{.base = teacher_choice(space), .of_base = {.tokens = 1}};
  const SolverProblem problem = problem_of(space, equal, costs, limits, config_.score.objective);
  if (search::solve(problem, solver_limits()).status == SolverStatus::infeasible) {
    fail("budget: no combination of variants meets it. {}", explain_infeasible(problem, solver_limits()));
  }
}

void Search::sort() {
  const auto kinds = needed_scores(config_.space, pieces_.blocks());
  prune::Scores scores;
  if (is_done(Stage::sort)) {
    done_before_ = true;
    scores = kinds.empty() ? scores : prune::read_scores(path("importance"));
  } else if (!kinds.empty()) {
    set_not_done(Stage::sort);
    const auto model = pretrained::ModelFolder::open(environment_.teacher, environment_.families)
                           .load(environment_.device, environment_.dtype);
    const auto rows = train::RowShare::all(std::min(environment_.rows_per_batch, config_.score.importance_rows));
    scores = prune::score_model(
        *model,
        pieces_.descriptor(),
        {.task = environment_.task,
         .open = [&] { return environment_.data.train_once(rows, config_.score.importance_rows); },
         .progress = [&](int64_t done, int64_t all) { show("sort", done, all); }},
        {.kinds = {kinds.begin(), kinds.end()}, .ffn = prune::FfnMethod::independent});
    prune::write_scores(path("importance"), scores);
    set_done(Stage::sort);
  }
  space_ = make_space(config_.space, pieces_.blocks(), scores);
  library_ = std::make_unique<Library>(environment_.teacher, environment_.families, pieces_, space());
  environment_.log.info(
      "sort       {} variants of {} sub-blocks{}",
      alternatives(space()).size(),
      2 * space_->size(),
      done_before_ ? ", ranked before" : "");
}

void Search::measure_costs() {
  costs_ = count_costs(pieces_, space(), workload());
  if (is_done(Stage::stats)) {
    done_before_ = true;
    const Node known = parse_json_file(path(kCostsFile));
    costs_->reference = {
        .prefill = known.at("reference").at(0).as_double(), .decode = known.at("reference").at(1).as_double()};
    set_seconds(known.at("fixed"), costs_->fixed);
    set_seconds(known.at("attention"), costs_->attention);
    set_seconds(known.at("ffn"), costs_->ffn);
  } else {
    set_not_done(Stage::stats);
    measure_times(*costs_, *library_, workload(), config_.workload.rounds, [&](int64_t done, int64_t all) {
      show("stats, shapes", done, all);
    });
    Node known = Node::make_table();
    known.set("reference", to_node(costs_->reference));
    known.set("fixed", to_node(costs_->fixed));
    known.set("attention", to_node(costs_->attention));
    known.set("ffn", to_node(costs_->ffn));
    write_file_atomically(path(kCostsFile), to_json(known) + "\n");
    set_done(Stage::stats);
  }
  const Cost teacher = costs_->of(teacher_choice(space()));
  environment_.log.info(
      "stats      the teacher has {} parameters, and takes {} for a prefill of {} tokens and {} for a decoding step",
      human_count(static_cast<double>(teacher.account.num_parameters)),
      with_unit(CostKind::prefill_seconds, teacher.prefill_seconds),
      workload().num_tokens,
      with_unit(CostKind::decode_seconds, teacher.decode_seconds));
  require_less_than_teacher(config_.budget.limits(), teacher, true);
}

void Search::score() {
  results_.scores = scores_around(teacher_choice(space()), "score, measurements");
  const SpaceScores& scores = results_.scores;
  done_before_ = scores.layer_forwards == 0;
  environment_.log.info(
      "score      {} variants on {} tokens; {} layer forwards, {} without reuse of prefixes",
      scores.of.size(),
      scores.of_base.tokens,
      scores.layer_forwards,
      scores.layer_forwards_without_reuse);
}

std::vector<Assignment> Search::solutions_of(const SolverProblem& problem) const {
  std::vector<Assignment> found;
  if (config_.solve.method == Method::exact) {
    for (const SolverResult& one :
         solve_many(problem, config_.solve.candidates, config_.solve.min_distance, solver_limits())) {
      found.push_back(value_of(one.best, "solution"));
    }
  } else if (
      const auto one = config_.solve.method == Method::greedy
                           ? greedy(problem)
                           : random_feasible(problem, static_cast<uint64_t>(config_.solve.seed))) {
    found.push_back(*one);
  }
  return found;
}

// Adds new combinations, measured, and sorts all by the objective.
void Search::measure_candidates(const SpaceScores& scores, const std::vector<Assignment>& found) {
  const Objective objective = config_.score.objective;
  int64_t done = 0;
  for (const Assignment& one : found) {
    Candidate candidate{.solution = solution_of(space(), scores, costs(), one, objective)};
    const bool known = std::any_of(results_.candidates.begin(), results_.candidates.end(), [&](const Candidate& other) {
      return other.solution.choice == candidate.solution.choice;
    });
    if (!known) {
      candidate.cost = candidate.solution.cost;
      candidate.measured = measure(*library_, held_out(), candidate.solution.choice);
      results_.candidates.push_back(std::move(candidate));
    }
    show("solve, candidates", ++done, static_cast<int64_t>(found.size()));
  }
  std::stable_sort(results_.candidates.begin(), results_.candidates.end(), [&](const auto& a, const auto& b) {
    return objective_of(a.measured, objective) < objective_of(b.measured, objective);
  });
}

void Search::solve() {
  const auto limits = config_.budget.limits();
  const Objective objective = config_.score.objective;
  const SolverLimits time = solver_limits();
  const SolverProblem problem = problem_of(space(), results_.scores, costs(), limits, objective);
  const auto found = solutions_of(problem);
  results_.solved = search::solve(problem, time);
  if (results_.solved.status == SolverStatus::infeasible) {
    fail("budget: no combination of variants meets it. {}", explain_infeasible(problem, time));
  }
  require(
      !found.empty(),
      "solve: no combination within the budgets was found, although there may be one; {}",
      config_.solve.method == Method::exact ? "raise solve.seconds" : "use method = \"exact\"");
  results_.candidates.clear();
  measure_candidates(results_.scores, found);
  // Replacements affect each other, so variants are measured again in the best child.
  while (config_.solve.method == Method::exact && results_.rounds < config_.solve.rounds) {
    const Choice best = results_.candidates.front().solution.choice;
    const SpaceScores around = scores_around_for_all(best, "solve, measurements around the best");
    measure_candidates(around, solutions_of(problem_of(space(), around, costs(), limits, objective)));
    if (results_.candidates.front().solution.choice == best) {
      break;
    }
    ++results_.rounds;
  }
  from_main(std::nullopt);  // nothing more to measure
  results_.sweep.clear();
  for (const SolverResult& one : sweep(problem, 0, sweep_values(problem, 0), time)) {
    if (one.best) {
      results_.sweep.push_back(solution_of(space(), results_.scores, costs(), *one.best, objective));
    }
  }
  results_.prices = shadow_prices(problem, results_.solved, time);
  const Candidate& best = results_.candidates.front();
  environment_.log.info(
      "solve      {} candidates measured, {} rounds improved the best; {} {:.4g}; {}",
      results_.candidates.size(),
      results_.rounds,
      name_of(objective),
      objective_of(best.measured, objective),
      distance_from_best_sum(config_.solve.method, results_, objective));
  for (const ShadowPrice& price : results_.prices) {
    environment_.log.info("           {}", sentence(price, limits));
  }
}

void Search::realise() {
  results_.child = folder_of(Stage::realise, "child");
  const Candidate& best = results_.candidates.front();
  done_before_ = fs::exists(results_.child);  // it gets its name when all of it is written
  if (!done_before_) {
    write_child(*library_, best.solution.choice, environment_.teacher, results_.child, environment_.families);
  }
  results_.child_seconds = measure_child_seconds(
      *library_, best.solution.choice, workload(), config_.workload.rounds, value_of(costs_, "costs").reference);
  results_.before_distillation = best.measured;
  const auto tokens = static_cast<double>(best.measured.tokens);
  environment_.log.info(
      "realise    {}: {} parameters, loss {:.4f} (the teacher's is {:.4f}), {} {:.4g} ({:.4g} predicted)",
      results_.child.string(),
      human_count(best.cost.of(CostKind::parameters)),
      best.measured.nll / tokens,
      results_.scores.of_base.nll / static_cast<double>(results_.scores.of_base.tokens),
      name_of(config_.score.objective),
      objective_of(best.measured, config_.score.objective),
      best.solution.predicted);
}

void Search::distil() {
  if (config_.distillation.steps == 0) {
    environment_.log.info("distil     off: distillation.steps is 0");
    return;
  }
  const auto distilled = environment_.distil(results_.child, folder_of(Stage::distil, "distil"));  // resumes by itself
  if (!distilled) {
    results_.stopped = true;
    return;
  }
  results_.distilled = *distilled;
  results_.after_distillation = measure_folder(*library_, held_out(), results_.distilled, environment_.families);
  const auto tokens = static_cast<double>(results_.after_distillation->tokens);
  environment_.log.info(
      "distil     {}: loss {:.4f}, KL {:.4g}",
      results_.distilled.string(),
      results_.after_distillation->nll / tokens,
      results_.after_distillation->kl / tokens);
}

void Search::write_puzzletron() const {
  std::vector<PuzzletronSolution> solutions;
  std::string all = identity(Stage::stats) + name_of(config_.score.objective);
  for (const Candidate& candidate : results_.candidates) {
    solutions.push_back(
        {.choice = candidate.solution.choice,
         .value = objective_of(candidate.measured, config_.score.objective),
         .cost = candidate.cost});
    all += fmt::format("{} {}", text_of(candidate.solution.choice), solutions.back().value);
    for (const CostKind kind : kCostKinds) {  // they depend on the workload, too
      all += fmt::format(" {}", candidate.cost.of(kind));
    }
  }
  const fs::path folder = path(fmt::format("puzzletron-{:08x}", checksum_of(all)));
  if (!fs::exists(folder)) {
    write_puzzletron_files(
        *library_, costs(), workload(), solutions, environment_.teacher, folder, environment_.families);
  }
  environment_.log.info("report     {}", (folder / "solutions.json").string());
}

void Search::write_report() {
  write_search_report(*this, output_);
  if (config_.search.puzzletron_files) {
    write_puzzletron();
  }
  environment_.log.info("report     {}", path("report.md").string());
}

}  // namespace lehr::search
