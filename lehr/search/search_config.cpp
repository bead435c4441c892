#include "lehr/search/search_config.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "lehr/base/error.h"

namespace lehr::search {

namespace {
using Units = std::vector<std::pair<std::string, double>>;

// The units of a cost, with their factors.
const Units& units_of(CostKind kind) {
  static const Units counts{{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"B", 1e9}, {"T", 1e12}};
  static const Units bytes{
      {"", 1},
      {"B", 1},
      {"KB", 1e3},
      {"MB", 1e6},
      {"GB", 1e9},
      {"TB", 1e12},
      {"KiB", 1024},
      {"MiB", 1024.0 * 1024},
      {"GiB", 1024.0 * 1024 * 1024},
      {"TiB", 1024.0 * 1024 * 1024 * 1024}};
  static const Units seconds{{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}};
  switch (kind) {
    case CostKind::memory:
    case CostKind::kv_cache:
      return bytes;
    case CostKind::prefill_seconds:
    case CostKind::decode_seconds:
      return seconds;
    default:
      return counts;
  }
}

std::string trimmed(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
    text.pop_back();
  }
  size_t first = 0;
  while (first < text.size() && std::isspace(static_cast<unsigned char>(text[first])) != 0) {
    ++first;
  }
  return text.substr(first);
}

Bound parse_bound(const std::string& key, CostKind kind, const std::string& text) {
  char* end = nullptr;
  const std::string number = trimmed(text);
  const double value = std::strtod(number.c_str(), &end);
  const std::string unit = trimmed(end);
  if (end != number.c_str() && std::isfinite(value) && value > 0) {
    if (unit == "%") {
      return {.is_share = true, .value = value / 100};
    }
    for (const auto& [name, factor] : units_of(kind)) {
      if (unit == name) {
        return {.is_share = false, .value = value * factor};
      }
    }
  }
  std::string units;
  for (const auto& [name, factor] : units_of(kind)) {
    units += name.empty() ? "" : (units.empty() ? "" : ", ") + name;
  }
  fail(
      "{}: expected a share of the teacher's such as \"60 %\", a number with one of the units {}, or a range such as "
      "\"50 % to 60 %\"; found '{}'",
      key,
      units,
      text);
}
}  // namespace

Limit parse_limit(const std::string& key, CostKind kind, const std::string& text) {
  const std::string to = " to ";
  const size_t found = text.find(to);
  if (found == std::string::npos) {
    return {.kind = kind, .most = parse_bound(key, kind, text)};
  }
  const std::string first = trimmed(text.substr(0, found)), second = trimmed(text.substr(found + to.size()));
  const size_t unit = second.find_first_not_of("0123456789.eE+-");
  // "50 to 60 %": the unit stands for both.
  const bool shares_unit = first.find_first_not_of("0123456789.eE+-") == std::string::npos && unit != std::string::npos;
  const Bound least = parse_bound(key, kind, shares_unit ? first + second.substr(unit) : first);
  const Bound most = parse_bound(key, kind, second);
  require(
      most.is_share != least.is_share || least.value <= most.value,
      "{}: expected the smaller value first, found '{}'",
      key,
      text);
  return {.kind = kind, .most = most, .least = least};
}

const std::optional<std::string>& BudgetConfig::of(CostKind kind) const {
  switch (kind) {
    case CostKind::parameters:
      return parameters;
    case CostKind::active_parameters:
      return active_parameters;
    case CostKind::memory:
      return memory;
    case CostKind::kv_cache:
      return kv_cache;
    case CostKind::prefill_flops:
      return prefill_flops;
    case CostKind::decode_flops:
      return decode_flops;
    case CostKind::prefill_seconds:
      return prefill_seconds;
    case CostKind::decode_seconds:
      break;
  }
  return decode_seconds;
}

std::vector<Limit> BudgetConfig::limits() const {
  std::vector<Limit> limits;
  for (const CostKind kind : kCostKinds) {
    if (const auto& text = of(kind)) {
      limits.push_back(parse_limit(std::string("budget.") + name_of(kind), kind, *text));
    }
  }
  return limits;
}

void BudgetConfig::fields(FieldVisitor& v) {
  v.optional(
      "parameters",
      parameters,
      "Maximum number of parameters: a share of the teacher's (\"60 %\"), a number (\"300 M\"), or a range "
      "(\"50 % to 60 %\").");
  v.optional("active_parameters", active_parameters, "Maximum number of parameters that a token uses.");
  v.optional("memory", memory, "Maximum memory of weights and KV cache under [workload], such as \"1.5 GiB\".");
  v.optional("kv_cache", kv_cache, "Maximum memory of the KV cache under [workload].");
  v.optional("prefill_flops", prefill_flops, "Maximum FLOPs of one prefill of workload.seq_len tokens.");
  v.optional("decode_flops", decode_flops, "Maximum FLOPs of decoding the last of workload.seq_len tokens.");
  v.optional(
      "prefill_seconds",
      prefill_seconds,
      "Maximum time of a prefill of workload.seq_len tokens, measured on this machine.");
  v.optional(
      "decode_seconds",
      decode_seconds,
      "Maximum time of a decoding step: the last of workload.seq_len tokens of workload.num_sequences sequences, "
      "measured.");
}

void BudgetConfig::check(Problems& problems) const {
  bool some = false;
  for (const CostKind kind : kCostKinds) {
    some = some || of(kind).has_value();
  }
  if (!some) {
    problems.add("budget", "expected at least one limit, such as parameters = \"60 %\"; without one the teacher wins");
    return;
  }
  try {
    limits();
  } catch (const Error& error) {
    const std::string text = error.what();
    const size_t colon = text.find(": ");
    problems.add(text.substr(0, colon), text.substr(colon + 2));
  }
}

const char* name_of(Objective objective) {
  switch (objective) {
    case Objective::kl:
      return "KL";
    case Objective::nll:
      return "loss";
    case Objective::agreement:
      return "disagreement";
    case Objective::cosine:
      return "1 - cosine";
    case Objective::mse:
      break;
  }
  return "normalized error";
}

double objective_of(const DivergenceSums& sums, Objective objective) {
  const auto tokens = static_cast<double>(sums.tokens);
  switch (objective) {
    case Objective::kl:
      return sums.kl / tokens;
    case Objective::nll:
      return sums.nll / tokens;
    case Objective::agreement:
      return 1 - sums.agreement / tokens;
    case Objective::cosine:
      return sums.cosine / tokens;
    case Objective::mse:
      break;
  }
  return sums.mse / tokens;
}

void ScoreConfig::fields(FieldVisitor& v) {
  v.optional(
      "importance_rows",
      importance_rows,
      "Number of training sequences used to rank channels, KV heads and experts.",
      positive());
  v.optional("max_rows", max_rows, "Number of held-out sequences on which each variant is measured.", positive());
  v.choice<Objective>(
      "objective",
      objective,
      {{"kl", Objective::kl},
       {"nll", Objective::nll},
       {"agreement", Objective::agreement},
       {"cosine", Objective::cosine},
       {"mse", Objective::mse}},
      "Measurement to minimize. kl: KL divergence from the teacher; nll: loss; agreement: share of tokens whose most "
      "likely prediction differs from the teacher's; cosine, mse: distance of the final hidden states.");
}

void WorkloadConfig::fields(FieldVisitor& v) {
  v.optional("seq_len", seq_len, "Tokens of a sequence; 0: training.seq_len of the config.", at_least(0));
  v.optional("num_sequences", num_sequences, "Sequences in the KV cache.", positive());
  v.optional("bytes_per_weight", bytes_per_weight, "Bytes of a weight: 2 for bfloat16.", positive());
  v.optional("bytes_per_cached", bytes_per_cached, "Bytes of an element of the KV cache.", positive());
  v.optional(
      "rounds",
      rounds,
      "Measurements of each sub-block's time beside a reference, of which the median ratio counts.",
      positive());
}

void SolveConfig::fields(FieldVisitor& v) {
  v.optional(
      "candidates",
      candidates,
      "Number of solutions that are measured as whole models; the best of them is built. The baselines give one.",
      positive());
  v.optional("min_distance", min_distance, "Minimum number of sub-blocks in which these solutions differ.", positive());
  v.optional(
      "rounds",
      rounds,
      "Maximum number of times that all variants are measured again, in the best child so far, and the choice is "
      "repeated; ends when nothing improves. Not with the baselines.",
      at_least(0));
  v.choice<Method>(
      "method",
      method,
      {{"exact", Method::exact}, {"greedy", Method::greedy}, {"random", Method::random}},
      "Integer program, or a baseline: greedy choice, or random variants within the budget.");
  v.optional("seed", seed, "Seed of method \"random\".", at_least(0));
  v.optional("seconds", seconds, "Time limit of one run of the solver, in seconds.", positive());
  v.optional("gap", gap, "Relative gap to the proven bound at which the solver stops.", at_least(0));
}

void GlobalDistillationConfig::fields(FieldVisitor& v) {
  v.optional("steps", steps, "Steps of training the child to reproduce the teacher; 0: none.", at_least(0));
  v.optional("lr", lr, "Learning rate of this training; the other settings are those of the config.", positive());
}

void SearchPaths::fields(FieldVisitor& v) {
  v.optional("teacher", teacher, "Folder of the trained model; unset: the newest checkpoint of the config's run.");
  v.required("config", config, "Config of a training run, for data, sequence length and device.");
  v.optional("output", output, "Folder for everything that the search writes; run again to resume.");
  v.optional(
      "puzzletron_files",
      puzzletron_files,
      "Also write library, costs and solutions in the files of ModelOpt's puzzletron: a model folder per variant.");
}

void SearchConfig::fields(FieldVisitor& v) {
  v.group("search", search, "The teacher, its data, and the folder of results.");
  v.group("space", space, "Sub-blocks to choose from.");
  v.group("budget", budget, "Limits that the child must meet.");
  v.group("workload", workload, "The workload for which memory, FLOPs and time are counted.");
  v.group("local_distillation", local_distillation, "Training of each variant to reproduce its layer.");
  v.group("score", score, "Measurements of each variant.");
  v.group("solve", solve, "Choice of the best combination.");
  v.group("distillation", distillation, "Training of the chosen child.");
}

void SearchConfig::check(Problems& problems) const {
  space.check(problems);
  budget.check(problems);
}

}  // namespace lehr::search
