// Saving and resuming a run: weights, optimizer and position, as a Hugging Face folder with files beside. A run of
// adapters saves these alone, as a folder of Hugging Face's PEFT. Of many ranks each writes and reads its boxes.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/data/tokenizer.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/optim/optimizer.h"
#include "lehr/peft/stored_names.h"
#include "lehr/state/safetensors_header.h"
#include "lehr/train/config.h"

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

/// Where a run is. Random numbers and the order of data are functions of the seed and the step, so this is all there is
/// to remember beside tensors.
struct RunState {
  int64_t step = 0;        ///< Steps done.
  int64_t num_tokens = 0;  ///< Valid items trained on.
  int64_t skipped = 0;     ///< Updates left out because something was not finite.
  /// Steps by which the place in the data, and in the schedule of the learning rate, is ahead of `step`: 0 but in a run
  /// that took over some of another one's state (train/initial_load.h). Negative where only the steps went on.
  int64_t data_ahead = 0;
  int64_t schedule_ahead = 0;
  int64_t seed = 0;
  int64_t rows_per_step = 0;
  int64_t seq_len = 0;
  std::string optimizer = {};         ///< Its name; empty in checkpoints that do not tell.
  std::string data_fingerprint = {};  ///< Of the data and its order; empty in checkpoints that do not tell.
  std::string base_fingerprint = {};  ///< Of the weights that adapters are for; empty without adapters.
  void fields(FieldVisitor& v);
};

/// The checkpoints of one run. Of many ranks all make one and call its functions together, in the same order; what one
/// throws, or returns, all do. They need no collectives, only the transport's store.
class RunCheckpoints {
 public:
  /// References must outlive this object. `mesh`: null on one device; else every parameter of `model` must be laid out
  /// (shard::replicate_elsewhere) by the first save or load, and job.dump_folder be on a file system that all ranks
  /// see. `whole` has all names of the model (on meta, say) where `model` is some stages of it; adapters are judged by
  /// it.
  RunCheckpoints(
      const TrainConfig& config,
      const descriptor::ModelArgs& args,
      const data::Tokenizer& tokenizer,
      nn::Model& model,
      optim::Optimizer& optimizer,
      mesh::DistributedContext* mesh = nullptr,
      const nn::Model* whole = nullptr);
  ~RunCheckpoints();

  /// The folder to resume from: checkpoint.load_step if the run has not gone back to it before, or the newest complete
  /// one; nothing for a new run. Newer ones whose files are not as they were written are set aside (step-N.damaged), of
  /// which take_warnings() tells. Throws a usage error if load_step names none or a damaged one, and if all are
  /// damaged.
  std::optional<std::filesystem::path> find();

  /// What a person should know of the calls before; empty again then. Only on the main rank.
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

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

  /// Bytes of the copy that save() makes on this rank. It is written beside training, and the next save takes its
  /// memory again, so it stays from the first save on. The optimizer's state must be allocated.
  int64_t copied_bytes() const;

  /// Waits until everything is on disk. Returns what went wrong, if it did.
  std::optional<std::string> wait();

 private:
  RunState load_here(
      const std::filesystem::path& folder, const RunState& now, const std::vector<state::TensorInfo>& entries);
  const std::vector<state::TensorInfo>& all_of(const std::string& stem, const std::vector<state::TensorInfo>& mine);
  void add_texts(state::CheckpointContents& contents, const RunState& state) const;
  std::optional<std::string> failure();
  at::ScalarType weights_type() const;
  std::string config_file() const;
  void require_same_peft(const std::filesystem::path& folder, const RunState& then, const RunState& now) const;

  const TrainConfig& config_;
  const descriptor::ModelArgs& args_;
  std::vector<std::pair<std::string, std::string>> tokenizer_files_;  // name and content
  nn::Model& model_;
  const nn::Model& by_names_;
  optim::Optimizer& optimizer_;
  std::vector<int64_t> stop_ids_;  // of generation_config.json
  std::vector<peft::StoredName> base_names_;
  state::StateMap map_;  // from the files of a checkpoint to the parameters
  mesh::DistributedContext* mesh_;
  std::shared_ptr<state::Coordinator> coordinator_;
  std::map<std::string, std::vector<state::TensorInfo>> all_;  // tensors of all stages, by stem
  std::vector<std::string> warnings_;
  std::unique_ptr<state::CheckpointStore> store_;
  std::unique_ptr<state::AsyncCheckpointer> writer_;
};

}  // namespace lehr::train
