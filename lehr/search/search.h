// The stages of a search, from a trained model to the folder of a smaller one. Each stage keeps its results in the
// output folder, so a search that was stopped continues where it was.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/value_of.h"
#include "lehr/prune/scores.h"
#include "lehr/search/costs.h"
#include "lehr/search/library.h"
#include "lehr/search/scores.h"
#include "lehr/search/search_config.h"
#include "lehr/search/solution.h"
#include "lehr/search/solver_questions.h"
#include "lehr/train/ranks.h"
#include "lehr/train/run_lock.h"

namespace lehr {
class Logger;
}

namespace lehr::search {

/// The stages, in order.
enum class Stage { sort, library, stats, score, solve, realise, distil, report };

/// Returns "sort", "library", ...
const char* name_of(Stage stage);
/// Returns all names, in order.
std::vector<std::string> stage_names();

/// The parts of the surrounding program that a search uses.
struct SearchEnvironment {
  std::filesystem::path teacher;  ///< Folder of the model's weights.
  const descriptor::ModelFamilies& families;
  Logger& log;
  at::Device device;
  at::ScalarType dtype;
  int64_t seq_len = 0;         ///< training.seq_len.
  int64_t rows_per_step = 0;   ///< Sequences of a batch of training data.
  int64_t rows_per_batch = 0;  ///< Sequences of a batch of held-out data.
  const train::TrainTask& task;
  const train::RunData& data;
  /// Local distillation and measurements are shared by these ranks; the first one does everything else.
  const train::Ranks& ranks;
  std::string distillation;  ///< Identifies the settings of `distil`.
  /// Trains the child in `child` to reproduce the teacher, in `output`, from where an earlier call was stopped. Returns
  /// the folder of the trained child; nothing if it was stopped, and saved for a later call.
  std::function<std::optional<std::filesystem::path>(
      const std::filesystem::path& child, const std::filesystem::path& output)>
      distil;
  std::function<void(Stage stage)> enters = {};  ///< Called on all ranks when a stage begins.
};

/// Returns the indices of the variants, for names of folders and records of stages.
std::string text_of(const Choice& choice);
/// Returns the CRC-32C of a text.
uint32_t checksum_of(const std::string& text);

/// Returns "5 % more memory (12 MiB) would lower the sum of scores by 0.0004 per token".
std::string sentence(const ShadowPrice& price, const std::vector<Limit>& limits);

/// A solution that was measured as a whole model.
struct Candidate {
  Solution solution;
  Cost cost;
  DivergenceSums measured;
};

/// The time of a finished stage.
struct StageTime {
  Stage stage = Stage::sort;
  double seconds = 0;
  bool done_before = false;  ///< Its results existed already.
};

/// The results for the report.
struct SearchResults {
  SpaceScores scores;
  std::vector<LocalDistillationResult> local_distillation;
  std::vector<Candidate> candidates;         ///< The best measured one first.
  SolverResult solved;                       ///< The program around the teacher.
  int64_t rounds = 0;                        ///< Rounds of scores around a candidate that improved it.
  std::vector<Solution> sweep;               ///< Solutions under tighter and looser first budgets, ascending.
  std::vector<ShadowPrice> prices;           ///< Of each budget.
  std::optional<PartSeconds> child_seconds;  ///< Of the best candidate as a whole.
  std::optional<DivergenceSums> before_distillation, after_distillation;
  std::filesystem::path child, distilled;
  std::vector<StageTime> times;
  bool stopped = false;  ///< `distil` was stopped, and there is no report; the same on all ranks.
};

/// A search. Its members refer to one another, so it never moves.
class Search {
 public:
  /// Opens the teacher; checks the space, and the data. Throws usage errors.
  Search(SearchConfig config, SearchEnvironment environment);
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  /// Throws a usage error for budgets that no child meets, or that the teacher meets already; those of measured times
  /// are checked after `stats`, in which they are measured.
  void check_budgets() const;
  /// Runs the stages up to `last`, after check_budgets. A stage whose inputs are those of an earlier run is not run
  /// again. All ranks must call it; the results are the main rank's.
  const SearchResults& run(Stage last);

  const DecoderPieces& pieces() const { return pieces_; }
  const SearchConfig& config() const { return config_; }
  const SearchSpace& space() const { return value_of(space_, "search: the space"); }
  const CostTable& costs() const { return value_of(costs_, "search: the costs"); }
  const Library& library() const { return *library_; }
  const SearchResults& results() const { return results_; }
  const SearchEnvironment& environment() const { return environment_; }
  descriptor::Workload workload() const;
  HeldOut held_out() const;

 private:
  void run_stage(Stage stage);
  void sort();
  void train_library();
  void measure_costs();
  void score();
  void solve();
  SpaceScores scores_around_for_all(const Choice& base, const std::string& what);
  void help_to_solve();
  std::optional<Choice> from_main(const std::optional<Choice>& choice) const;
  WorkShare share() const;
  void measure_candidates(const SpaceScores& scores, const std::vector<Assignment>& found);
  SpaceScores scores_around(const Choice& base, const std::string& what);
  std::vector<Assignment> solutions_of(const SolverProblem& problem) const;
  void realise();
  void distil();
  void write_report();
  void write_puzzletron() const;
  std::filesystem::path path(const std::string& name) const { return output_ / name; }
  std::string identity(Stage stage) const;
  std::filesystem::path folder_of(Stage stage, const std::string& name) const;
  bool is_done(Stage stage) const;
  void set_done(Stage stage);
  void set_not_done(Stage stage);
  SolverLimits solver_limits() const;
  void show(const std::string& what, int64_t done, int64_t all);

  SearchConfig config_;
  SearchEnvironment environment_;
  std::filesystem::path output_;
  DecoderPieces pieces_;
  std::string teacher_identity_;
  std::optional<SearchSpace> space_;
  std::unique_ptr<Library> library_;
  std::unique_ptr<train::RunLock> lock_;
  std::optional<CostTable> costs_;
  SearchResults results_;
  bool done_before_ = false;
  double stage_begin_ = 0;
};

}  // namespace lehr::search
