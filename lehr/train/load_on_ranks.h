// A model folder loaded over the ranks of a mesh: for evaluation, generation and verification, and as a teacher.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lehr/pretrained/model_folder.h"
#include "lehr/shard/fully_shard.h"
#include "lehr/train/ranks.h"
#include "lehr/train/train_spec.h"

namespace lehr::train {

/// The model of a folder, laid out over the ranks of a mesh like a training run, without adapters or float8 of the run,
/// and with experts in one part: on meta until load().
class ModelOnRanks {
 public:
  /// The pipeline stages of another model, beside which this one's are.
  struct Beside {
    std::vector<int64_t> rank_of_stage;
    std::vector<int64_t> layers;  ///< By stage; this model gets the same if their sum is its number, else the config's.
  };
  /// A stage that this rank has.
  struct Stage {
    int64_t number;
    std::shared_ptr<nn::Model> model;
    int64_t first_layer;
    shard::FullySharded sharded;  ///< The handle of its shards.
  };
  /// All ranks must call; `folder` must outlive load(), and `ranks`, which are several, the model. By default pipeline
  /// rank i has stage i. Throws usage errors that name the key.
  ModelOnRanks(
      const pretrained::ModelFolder& folder,
      const TrainSpecs& specs,
      TrainConfig config,
      const Ranks& ranks,
      at::Device device,
      const std::optional<Beside>& beside = {});

  /// Allocates this rank's shards and reads them. Call it once.
  std::shared_ptr<nn::Model> load();
  /// Without pipeline parallelism one stage, the whole model.
  std::vector<Stage>& stages() { return stages_; }
  /// Number of layers of the whole model.
  int64_t num_layers() const { return built_.model->num_local_layers(); }

 private:
  const pretrained::ModelFolder& folder_;
  TrainConfig config_;
  at::Device device_;
  pretrained::ModelFolder::Built built_;
  std::vector<Stage> stages_;
  std::shared_ptr<nn::Model> model_;
};

/// Loads the model of `folder` in the arithmetic of config.training, with the degrees and options of
/// config.parallelism (but expert_parallel_parts): as folder.load does on one device, and sharded like a training run
/// on several. With pipeline parallelism each rank has one stage. All ranks must call; `ranks` must outlive the model.
/// Throws usage errors that name the key before memory is allocated.
std::shared_ptr<nn::Model> load_on_ranks(
    const pretrained::ModelFolder& folder,
    const TrainSpecs& specs,
    TrainConfig config,
    const Ranks& ranks,
    at::Device device);

/// Returns the config with which several ranks work on the same whole sequences of any length, which they pad
/// (generate.h, verify.h), in float32, float64 or bfloat16. Throws a usage error for ranks that would have parts of
/// sequences, and for replicas.
TrainConfig config_for_whole_sequences(
    const pretrained::ModelFolder& folder,
    const ParallelismConfig& parallelism,
    at::ScalarType dtype,
    const Ranks& ranks);

/// Loads the model for such work. Throws a usage error as config_for_whole_sequences and load_on_ranks do.
std::shared_ptr<nn::Model> load_for_whole_sequences(
    const pretrained::ModelFolder& folder,
    const TrainSpecs& specs,
    const ParallelismConfig& parallelism,
    at::ScalarType dtype,
    const Ranks& ranks,
    at::Device device);

}  // namespace lehr::train
