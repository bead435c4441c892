#include "lehr/search/report.h"

#include <algorithm>
#include <limits>
#include <map>

#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/config/json.h"
#include "lehr/descriptor/block_picture.h"
#include "lehr/draw/picture_page.h"
#include "lehr/draw/plot.h"
#include "lehr/search/search.h"

namespace lehr::search {

namespace {

std::string percent(double part, double whole) {
  return fmt::format("{:.1f} %", 100 * part / whole);
}

double per_token(double sum, const DivergenceSums& sums) {
  return sum / static_cast<double>(sums.tokens);
}

Cost teacher_cost(const Search& search) {
  return search.costs().of(teacher_choice(search.space()));
}

std::string drawing(const Search& search, const Choice& choice, const std::string& title) {
  descriptor::ModelBlocks blocks = descriptor::blocks_of(search.pieces().args(), search.workload());
  blocks.blocks = blocks_of(search.space(), choice);
  blocks.account = descriptor::account_for(blocks.form, blocks.blocks, blocks.work);
  return descriptor::draw_blocks(blocks, title);
}

// What is shown at a point of the Pareto front: costs, the layers by their variants, without those that are as in the
// teacher.
std::string tooltip_of(const Search& search, const std::string& name, const Cost& cost, const Choice& choice) {
  const Cost whole = teacher_cost(search);
  std::string text = name;
  for (const CostKind kind : kCostKinds) {
    text += fmt::format(
        "; {} {} ({})", name_of(kind), with_unit(kind, cost.of(kind)), percent(cost.of(kind), whole.of(kind)));
  }
  for (size_t layer = 0; layer < search.space().size(); ++layer) {
    const LayerSpace& variants = search.space()[layer];
    if (choice.attention[layer] != 0 || choice.ffn[layer] != 0) {
      text += fmt::format(
          "; layer {}: {}, {}",
          layer,
          variants.attention[choice.attention[layer]].name,
          variants.ffn[choice.ffn[layer]].name);
    }
  }
  return text;
}

// The sum of scores against the cost of the first budget, with the candidates as they were measured.
std::string pareto(const Search& search) {
  const CostKind kind = search.config().budget.limits().front().kind;
  const double whole = teacher_cost(search).of(kind);
  draw::PlotSeries sums{.name = "sum of scores, best combination", .markers = true};
  for (const Solution& solution : search.results().sweep) {
    sums.x.push_back(100 * solution.cost.of(kind) / whole);
    sums.y.push_back(solution.predicted);
    sums.tooltips.push_back(
        tooltip_of(search, fmt::format("sum of scores {:.4g}", solution.predicted), solution.cost, solution.choice));
  }
  draw::PlotSeries measured{.name = "candidates, measured", .markers = true};
  std::vector<const Candidate*> candidates;
  for (const Candidate& candidate : search.results().candidates) {
    candidates.push_back(&candidate);
  }
  std::sort(candidates.begin(), candidates.end(), [&](const auto* a, const auto* b) {
    return a->cost.of(kind) < b->cost.of(kind);
  });
  for (const Candidate* candidate : candidates) {
    measured.x.push_back(100 * candidate->cost.of(kind) / whole);
    measured.y.push_back(objective_of(candidate->measured, search.config().score.objective));
    measured.tooltips.push_back(tooltip_of(
        search,
        fmt::format(
            "candidate {}{}: measured {:.4g}, predicted {:.4g}, loss {:.4f}",
            candidate - search.results().candidates.data() + 1,
            candidate == search.results().candidates.data() ? " (built)" : "",
            measured.y.back(),
            candidate->solution.predicted,
            per_token(candidate->measured.nll, candidate->measured)),
        candidate->cost,
        candidate->solution.choice));
  }
  return draw::line_plot_svg(
      {sums, measured},
      {.title = "What a budget costs",
       .x_label = fmt::format("{}, % of the teacher", name_of(kind)),
       .y_label = std::string(name_of(search.config().score.objective)) + ", per token"});
}

// The score of each variant: one row per name, one column per layer.
std::string score_map(const Search& search) {
  std::map<std::string, size_t> rows;
  draw::HeatMap map{.title = "Scores: difference from the teacher if this sub-block alone is replaced"};
  for (const pretrained::Subblock subblock : pretrained::kSubblocks) {
    for (const LayerSpace& layer : search.space()) {
      for (size_t i = 1; i < layer.of(subblock).size(); ++i) {
        const std::string name = pretrained::name_of(subblock) + ", " + layer.of(subblock)[i].name;
        if (rows.emplace(name, map.row_names.size()).second) {
          map.row_names.push_back(name);
        }
      }
    }
  }
  map.x_label = "layer";
  map.rows = map.row_names.size();
  map.columns = search.space().size();
  for (size_t layer = 0; layer < map.columns; ++layer) {
    map.column_names.push_back(std::to_string(layer));
  }
  map.values.assign(map.rows * map.columns, std::numeric_limits<double>::quiet_NaN());
  const double own = objective_of(search.results().scores.of_base, search.config().score.objective);
  for (const auto& [place, sums] : search.results().scores.of) {
    const std::string name = pretrained::name_of(place.subblock) + ", " + at(search.space(), place).name;
    map.values[rows.at(name) * map.columns + static_cast<size_t>(place.layer)] =
        objective_of(sums, search.config().score.objective) - own;
  }
  map.show_values = map.columns <= 12;
  return draw::heat_map_svg(map);
}

std::string words_of(const Limit& limit, double teacher) {
  const std::string most = with_unit(limit.kind, limit.most.of(teacher));
  return limit.least ? with_unit(limit.kind, limit.least->of(teacher)) + " to " + most : most;
}

std::string budget_table(const Search& search, const Cost& child) {
  std::string text = "| | teacher | child | of the teacher's | budget |\n| --- | --- | --- | --- | --- |\n";
  const Cost teacher = teacher_cost(search);
  const auto limits = search.config().budget.limits();
  for (const CostKind kind : kCostKinds) {
    const auto limit = std::find_if(limits.begin(), limits.end(), [&](const Limit& one) { return one.kind == kind; });
    text += fmt::format(
        "| {} | {} | {} | {} | {} |\n",
        name_of(kind),
        with_unit(kind, teacher.of(kind)),
        with_unit(kind, child.of(kind)),
        percent(child.of(kind), teacher.of(kind)),
        limit == limits.end() ? "" : words_of(*limit, teacher.of(kind)));
  }
  return text;
}

std::string quality_row(const std::string& name, const DivergenceSums& sums, const std::string& predicted) {
  return fmt::format(
      "| {} | {:.4f} | {:.4g} | {} | {:.1f} % | {:.4g} |\n",
      name,
      per_token(sums.nll, sums),
      per_token(sums.kl, sums),
      predicted,
      100 * per_token(sums.agreement, sums),
      std::max(0.0, per_token(sums.cosine, sums)));
}

std::string quality_table(const Search& search) {
  const SearchResults& results = search.results();
  std::string text = "| model | loss | KL from the teacher | " + std::string(name_of(search.config().score.objective)) +
                     ", predicted | same most likely token | 1 - cosine |\n"
                     "| --- | --- | --- | --- | --- | --- |\n";
  text += quality_row("teacher", results.scores.of_base, "");
  for (size_t i = 0; i < results.candidates.size(); ++i) {
    const Candidate& candidate = results.candidates[i];
    text += quality_row(
        fmt::format("candidate {}{}", i + 1, i == 0 ? ", built" : ""),
        candidate.measured,
        fmt::format("{:.4g}", candidate.solution.predicted));
  }
  if (results.after_distillation) {
    text += quality_row("candidate 1, distilled", *results.after_distillation, "");
  }
  return text;
}

std::string layer_table(const Search& search, const Choice& choice) {
  std::string text = "| layer | attention | feed-forward |\n| --- | --- | --- |\n";
  for (size_t layer = 0; layer < search.space().size(); ++layer) {
    const LayerSpace& variants = search.space()[layer];
    text += fmt::format(
        "| {} | {} | {} |\n",
        layer,
        variants.attention[choice.attention[layer]].name,
        variants.ffn[choice.ffn[layer]].name);
  }
  return text;
}

std::string stage_table(const Search& search) {
  std::string text = "| stage | time |\n| --- | --- |\n";
  for (const StageTime& time : search.results().times) {
    text += fmt::format(
        "| {} | {}{} |\n",
        name_of(time.stage),
        human_seconds(time.seconds),
        time.done_before ? ", done in an earlier run" : "");
  }
  return text;
}

// The times of the child, as predicted and as measured.
std::string times(const Search& search, const Cost& cost) {
  const auto& measured = search.results().child_seconds;
  if (!measured) {
    return "";
  }
  const auto row = [](const std::string& what, CostKind kind, double whole, double sum) {
    return fmt::format(
        "| {} | {} | {} | {:+.1f} % |\n", what, with_unit(kind, whole), with_unit(kind, sum), 100 * (sum / whole - 1));
  };
  const auto& work = search.workload();
  return "\n| the child's time | measured as a whole | sum of its parts | difference |\n| --- | --- | --- | --- "
         "|\n" +
         row(fmt::format("prefill of {} tokens", work.num_tokens),
             CostKind::prefill_seconds,
             measured->prefill,
             cost.prefill_seconds) +
         row(fmt::format("decoding step of {} sequences of {} tokens", work.num_sequences, work.num_tokens),
             CostKind::decode_seconds,
             measured->decode,
             cost.decode_seconds);
}

std::string solver_words(const Search& search) {
  const SolverResult& solved = search.results().solved;
  if (!solved.best) {
    return "";
  }
  return fmt::format(
      "\nThe integer program of the scores in the teacher: {}, sum of scores {:.4g}, bound {:.4g}, gap {:.2g} %.\n",
      name_of(solved.status),
      solved.best->loss,
      solved.bound,
      100 * solved.gap);
}

std::string markdown(const Search& search) {
  const SearchResults& results = search.results();
  const Candidate& best = results.candidates.front();
  std::string text = fmt::format(
      "# A smaller model ({})\n\nFound by `lehr search` with the data of `{}`. Losses are per token, in nats, on {} "
      "held-out tokens.\n\n",
      search.pieces().args().model_type(),
      search.config().search.config,
      results.scores.of_base.tokens);
  text += budget_table(search, best.cost) + "\n" + quality_table(search);
  text +=
      "\n\"Predicted\" is the sum of the scores of the chosen variants, each measured alone in the model of the round "
      "before (at first the teacher). The measured value differs, because replacements affect each other.\n\n![What a "
      "budget costs](pareto.svg)\n\n[The same picture with tooltips](pareto.html): the layers of each candidate.\n";
  text += times(search, best.cost) + solver_words(search);
  for (const ShadowPrice& price : results.prices) {
    text += "\n- " + sentence(price, search.config().budget.limits());
  }
  text += "\n\n## The layers\n\n" + layer_table(search, best.solution.choice) +
          "\n![The teacher](teacher.svg)\n\n![The child](child.svg)\n\n## Scores\n\n![Scores of the "
          "variants](scores.svg)\n\n## Time\n\n" +
          stage_table(search) + "\n## Next steps\n\n```sh\n";
  text += fmt::format(
      "lehr inspect {0}\nlehr eval {1} --model {0}\n```\n",
      (results.distilled.empty() ? results.child : results.distilled).string(),
      search.config().search.config);
  if (results.distilled.empty()) {
    text += "\nThe child was not trained as a whole: set `distillation.steps` and run the same command again.\n";
  }
  return text;
}

Node to_node(const DivergenceSums& sums) {
  Node node = Node::make_table();
  node.set("tokens", Node(sums.tokens));
  node.set("loss", Node(per_token(sums.nll, sums)));
  node.set("kl", Node(per_token(sums.kl, sums)));
  node.set("agreement", Node(per_token(sums.agreement, sums)));
  node.set("cosine", Node(per_token(sums.cosine, sums)));
  node.set("mse", Node(per_token(sums.mse, sums)));
  return node;
}

Node to_node(const Cost& cost) {
  Node node = Node::make_table();
  for (const CostKind kind : kCostKinds) {
    node.set(name_of(kind), Node(cost.of(kind)));
  }
  return node;
}

Node to_node(const SolverResult& solved) {
  Node node = Node::make_table();
  node.set("status", Node(std::string(name_of(solved.status))));
  if (solved.best) {
    node.set("sum_of_scores", Node(solved.best->loss));
    node.set("bound", Node(solved.bound));
    node.set("gap", Node(solved.gap));
  }
  return node;
}

Node variants_node(const Search& search) {
  Node variants = Node::make_list();
  for (const auto& [place, sums] : search.results().scores.of) {
    Node node = Node::make_table();
    node.set("layer", Node(place.layer));
    node.set("subblock", Node(pretrained::name_of(place.subblock)));
    node.set("variant", Node(at(search.space(), place).name));
    node.set("scores", to_node(sums));
    node.set("costs", to_node(search.costs().of(place)));
    variants.push_back(std::move(node));
  }
  return variants;
}

std::string json(const Search& search) {
  const SearchResults& results = search.results();
  Node node = Node::make_table();
  node.set("teacher", Node(search.environment().teacher.string()));
  node.set("teacher_costs", to_node(teacher_cost(search)));
  node.set("teacher_scores", to_node(results.scores.of_base));
  node.set("variants", variants_node(search));
  Node candidates = Node::make_list();
  for (const Candidate& candidate : results.candidates) {
    Node one = Node::make_table();
    one.set("predicted", Node(candidate.solution.predicted));
    one.set("measured", to_node(candidate.measured));
    one.set("costs", to_node(candidate.cost));
    one.set("block_configs", descriptor::write_block_configs(blocks_of(search.space(), candidate.solution.choice)));
    candidates.push_back(std::move(one));
  }
  node.set("candidates", std::move(candidates));
  node.set("solver", to_node(results.solved));
  if (results.child_seconds) {
    Node seconds = Node::make_table();
    seconds.set("prefill", Node(results.child_seconds->prefill));
    seconds.set("decode", Node(results.child_seconds->decode));
    node.set("child_seconds", std::move(seconds));
  }
  if (results.after_distillation) {
    node.set("distilled", to_node(*results.after_distillation));
  }
  return to_json(node, true) + "\n";
}
}  // namespace

void write_search_report(const Search& search, const std::filesystem::path& folder) {
  const Choice& child = search.results().candidates.front().solution.choice;
  const std::string front = pareto(search);
  write_file_atomically(folder / "pareto.svg", front);
  write_file_atomically(folder / "pareto.html", picture_page("What a budget costs", front));
  write_file_atomically(folder / "scores.svg", score_map(search));
  write_file_atomically(folder / "teacher.svg", drawing(search, teacher_choice(search.space()), "The teacher"));
  write_file_atomically(folder / "child.svg", drawing(search, child, "The child"));
  write_file_atomically(folder / "search.json", json(search));
  write_file_atomically(folder / "report.md", markdown(search));
}

}  // namespace lehr::search
