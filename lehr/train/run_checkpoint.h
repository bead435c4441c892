// Saving and resuming a run: weights, optimizer and run state, as a Hugging Face folder with additional files. A run
// with adapters saves only these, as a folder of Hugging Face's PEFT. Each rank writes and reads its own shards.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/data/tokenizer.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/optim/optimizer.h"
#include "lehr/peft/stored_names.h"
#include "lehr/state/safetensors_header.h"
#include "lehr/train/config.h"
#include "lehr/train/run_state.h"

namespace lehr::mesh {
class DistributedContext;
}
namespace lehr::state {
class AsyncCheckpointer;
class CheckpointStore;
class Coordinator;
struct CheckpointContents;
}  // namespace lehr::state

namespace lehr::train {

struct ConfiguredRun;
class LocalCheckpoints;

/// The checkpoints of one run. All ranks construct one and call its functions together, in the same order; errors and
/// return values are the same on all of them. It uses only the transport's store, no collectives.
class RunCheckpoints {
 public:
  /// References must outlive this object. `mesh`: null on one device; otherwise every parameter of `model` must be laid
  /// out (shard::replicate_elsewhere) before the first save or load, and job.dump_folder must be on a file system that
  /// all ranks share. `whole` has all names of the model (it may be on meta) if `model` holds only some stages;
  /// adapters are checked against it.
  RunCheckpoints(
      const TrainConfig& config,
      const descriptor::ModelFamily& family,
      const descriptor::ModelArgs& args,
      const data::Tokenizer& tokenizer,
      nn::Model& model,
      optim::Optimizer& optimizer,
      mesh::DistributedContext* mesh = nullptr,
      const nn::Model* whole = nullptr);
  ~RunCheckpoints();

  /// Returns the folder to resume from: checkpoint.load_step unless the run went back to it before, or the newest
  /// complete one, which may be a local checkpoint; nullopt for a new run. Newer damaged checkpoints are set aside
  /// (step-N.damaged), which take_warnings() reports. Throws a usage error if there is no checkpoint of load_step or it
  /// is damaged, and if all are damaged.
  std::optional<std::filesystem::path> find();

  /// Returns and clears the warnings of previous calls. Only on the main rank.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

  /// The state of a checkpoint, and that of the run that continues from it (run_changes.h).
  struct Continuation {
    RunState then;
    RunState state;
  };

  /// Returns the states of a run that continues from `folder`. Throws a usage error for a checkpoint of another shape
  /// or base, or whose settings differ from those of `now` without permission. The model may be on meta.
  Continuation check(const std::filesystem::path& folder, const ConfiguredRun& now);

  /// Loads weights (for adapters: the base must be loaded) and optimizer from a folder that check() accepted. The
  /// optimizer's state must be allocated.
  void load(const std::filesystem::path& folder);

  /// After a load of checkpoint.load_step: sets later checkpoints aside and records that the run went back, so that the
  /// same command later resumes from the newest checkpoint. Returns the steps of those set aside.
  std::vector<int64_t> went_back_to(int64_t step);
  /// The file of that record; checkpoint.load_step is ignored while it exists.
  std::filesystem::path went_back_file(int64_t step) const;

  /// Sets the folder of the model that the run continues: a checkpoint of the run, or the model that it was given.
  /// Later checkpoints keep what its config.json and generation_config.json have beside the shape, such as names of
  /// labels.
  void continue_from(const std::filesystem::path& folder);

  /// Hands a copy of the current state to the writer; the state must not change before wait_copied(). Returns the error
  /// of an earlier save, if there was one: a failed save loses only itself, never an earlier checkpoint. Throws a
  /// runtime error, and saves nothing, if a weight is not finite.
  std::optional<std::string> save(const RunState& state);

  /// Waits until weights and optimizer state may change again after a save, and until a local checkpoint is complete.
  /// Call it before an update.
  void wait_copied();

  /// Bytes of the copy that save() makes on this rank. It is written in the background, and the next save reuses its
  /// memory, so it stays allocated after the first save. The optimizer's state must be allocated.
  int64_t copied_bytes() const;

  /// The seconds that the last finished save took to write, known from the next save or wait on.
  std::optional<double> write_seconds() const { return write_seconds_; }

  /// Waits until everything is on disk. Returns the error of an earlier save, if there was one.
  std::optional<std::string> wait();

  /// @name Local checkpoints (local_checkpoints.h)
  /// @{
  /// LocalCheckpoints::open, after load() or the initial values. The optimizer's state must be allocated.
  std::optional<std::string> open_local(bool resumes);
  LocalCheckpoints& local() { return *local_; }
  /// As save(), but writes a local checkpoint. They must be on.
  std::optional<std::string> save_local(const RunState& state);
  /// @}

  /// Returns the step of the newest complete checkpoint of job.dump_folder; -1: none.
  int64_t newest_on_disk();

 private:
  Continuation check_here(const std::filesystem::path& folder, const ConfiguredRun& now) const;
  const std::vector<state::TensorInfo>& all_of(const std::string& stem, const std::vector<state::TensorInfo>& mine);
  void require_finite(int64_t step);
  state::CheckpointContents contents_of(const RunState& state);
  void add_texts(state::CheckpointContents& contents, const RunState& state) const;
  std::optional<std::string> failure();
  at::ScalarType weights_type() const;
  std::string config_file() const;
  void require_same_peft(const std::filesystem::path& folder, const RunState& then, const RunState& now) const;

  const TrainConfig& config_;
  const descriptor::ModelFamily& family_;
  const descriptor::ModelArgs& args_;
  Node source_;             // config.json of the model that the run continues, ...
  Node source_generation_;  // ... and its generation_config.json; null: none
  std::vector<std::pair<std::string, std::string>> tokenizer_files_;  // names and contents
  nn::Model& model_;
  const nn::Model& by_names_;
  optim::Optimizer& optimizer_;
  std::vector<int64_t> stop_ids_;  // for generation_config.json
  std::vector<peft::StoredName> base_names_;
  state::StateMap map_;  // from the files of a checkpoint to the parameters
  mesh::DistributedContext* mesh_;
  std::shared_ptr<state::Coordinator> coordinator_;
  std::map<std::string, std::vector<state::TensorInfo>> all_;  // tensors of all stages, by stem
  std::vector<std::string> warnings_;
  std::optional<double> write_seconds_;
  std::unique_ptr<state::CheckpointStore> store_;
  std::unique_ptr<state::AsyncCheckpointer> writer_;
  std::unique_ptr<LocalCheckpoints> local_;
  bool from_local_ = false;  // what find() returned
};

}  // namespace lehr::train
