// Saving and resuming a run: weights, optimizer and position, as a Hugging Face folder with files beside. A run of
// adapters saves these alone, as a folder of Hugging Face's PEFT.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lehr/data/tokenizer.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/optim/optimizer.h"
#include "lehr/peft/stored_names.h"
#include "lehr/train/config.h"

namespace lehr::state {
class AsyncCheckpointer;
class CheckpointStore;
}  // namespace lehr::state

namespace lehr::train {

/// Where a run is. Random numbers and the order of data are functions of the seed and the step, so this is all there is
/// to remember beside tensors.
struct RunState {
  int64_t step = 0;        ///< Steps done.
  int64_t num_tokens = 0;  ///< Valid items trained on.
  int64_t skipped = 0;     ///< Updates left out because something was not finite.
  int64_t seed = 0;
  int64_t rows_per_step = 0;
  int64_t seq_len = 0;
  std::string optimizer = {};         ///< Its name; empty in checkpoints that do not tell.
  std::string data_fingerprint = {};  ///< Of the data and its order; empty in checkpoints that do not tell.
  std::string base_fingerprint = {};  ///< Of the weights that adapters are for; empty without adapters.
  void fields(FieldVisitor& v);
};

/// The checkpoints of one run.
class RunCheckpoints {
 public:
  /// References must outlive this object.
  RunCheckpoints(
      const TrainConfig& config,
      const descriptor::ModelArgs& args,
      const data::Tokenizer& tokenizer,
      nn::Model& model,
      optim::Optimizer& optimizer);
  ~RunCheckpoints();

  /// The folder to resume from: checkpoint.load_step if the run has not gone back to it before, or the newest complete
  /// one; nothing for a new run. Throws a usage error if load_step names none.
  std::optional<std::filesystem::path> find() const;

  /// Loads weights (of adapters: the base must be loaded), optimizer and position. Throws a usage error for a
  /// checkpoint of another shape, or of another seed, batch size, data or base than `now`'s, which would change the
  /// order of data. The optimizer's state must be allocated.
  RunState load(const std::filesystem::path& folder, const RunState& now);

  /// After a load of checkpoint.load_step: sets later checkpoints aside, and remembers that the run went back, so that
  /// the same command goes on from where it comes to. Returns the steps of those set aside.
  std::vector<int64_t> went_back_to(int64_t step);
  /// The file that remembers; checkpoint.load_step is not looked at while it is there.
  std::filesystem::path went_back_file(int64_t step) const;

  /// Hands the present state to the writer. Returns what went wrong with an earlier save, if it did: a failed save
  /// loses itself, never an earlier checkpoint. Throws a runtime error, and saves nothing, when a weight is not finite.
  std::optional<std::string> save(const RunState& state);

  /// Waits until everything is on disk. Returns what went wrong, if it did.
  std::optional<std::string> wait();

 private:
  std::optional<std::string> failure();
  at::ScalarType weights_type() const;
  std::string config_file() const;
  void require_same_peft(const std::filesystem::path& folder, const RunState& then, const RunState& now) const;

  const TrainConfig& config_;
  const descriptor::ModelArgs& args_;
  std::vector<std::pair<std::string, std::string>> tokenizer_files_;  // name and content
  nn::Model& model_;
  optim::Optimizer& optimizer_;
  std::vector<int64_t> stop_ids_;  // of generation_config.json
  std::vector<peft::StoredName> base_names_;
  state::StateMap map_;  // from the files of a checkpoint to the parameters
  std::unique_ptr<state::CheckpointStore> store_;
  std::unique_ptr<state::AsyncCheckpointer> writer_;
};

}  // namespace lehr::train
