// The config of a search: the sections and keys of SEARCH.toml.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/config/fields.h"
#include "lehr/search/costs.h"
#include "lehr/search/divergence.h"
#include "lehr/search/local_distillation.h"
#include "lehr/search/space.h"

namespace lehr::search {

/// A share of the teacher's cost, or a value in the cost's unit.
struct Bound {
  bool is_share = false;
  double value = 0;

  /// Returns the value in the cost's unit.
  double of(double teacher) const { return is_share ? value * teacher : value; }
};

/// Limits of one cost of a child.
struct Limit {
  CostKind kind = CostKind::parameters;
  Bound most = {};
  std::optional<Bound> least = {};
};

/// Parses "60 %", "1.5 GiB", "300 M", "80 ms", a plain number, or a range such as "50 % to 60 %". Throws a usage error
/// that begins with `key`.
Limit parse_limit(const std::string& key, CostKind kind, const std::string& text);

/// The section [budget].
struct BudgetConfig {
  std::optional<std::string> parameters, active_parameters, memory, kv_cache, prefill_flops, decode_flops,
      prefill_seconds, decode_seconds;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
  /// The given limits, in the order of kCostKinds.
  std::vector<Limit> limits() const;

 private:
  const std::optional<std::string>& of(CostKind kind) const;
};

/// The measurement that a search minimizes.
enum class Objective { kl, nll, agreement, cosine, mse };

/// Returns "KL", "loss", ...
const char* name_of(Objective objective);

/// Returns the value per token that is minimized: for agreement, the share of tokens without it.
double objective_of(const DivergenceSums& sums, Objective objective);

/// The section [score].
struct ScoreConfig {
  int64_t importance_rows = 64;
  int64_t max_rows = 32;
  Objective objective = Objective::kl;
  void fields(FieldVisitor& v);
};

/// The section [workload], for which memory, FLOPs and time are counted.
struct WorkloadConfig {
  int64_t seq_len = 0;
  int64_t num_sequences = 1;
  int64_t bytes_per_weight = 2;
  int64_t bytes_per_cached = 2;
  int64_t rounds = 7;
  void fields(FieldVisitor& v);
};

/// The method that chooses a combination: the integer program, or one of the baselines that it is compared with.
enum class Method { exact, greedy, random };

/// The section [solve].
struct SolveConfig {
  int64_t candidates = 4;
  int64_t min_distance = 1;
  int64_t rounds = 2;
  Method method = Method::exact;
  int64_t seed = 0;
  double seconds = 60;
  double gap = 1e-4;
  void fields(FieldVisitor& v);
};

/// The section [distillation]: training of the whole child.
struct GlobalDistillationConfig {
  int64_t steps = 0;
  double lr = 1e-3;
  void fields(FieldVisitor& v);
};

/// The section [search].
struct SearchPaths {
  std::optional<std::string> teacher;
  std::string config;
  std::string output = "outputs/search";
  bool puzzletron_files = false;
  void fields(FieldVisitor& v);
};

/// The config of a search: all sections.
struct SearchConfig {
  SearchPaths search;
  SpaceConfig space;
  BudgetConfig budget;
  WorkloadConfig workload;
  LocalDistillationConfig local_distillation;
  ScoreConfig score;
  SolveConfig solve;
  GlobalDistillationConfig distillation;
  void fields(FieldVisitor& v);
  void check(Problems& problems) const;
};

}  // namespace lehr::search
