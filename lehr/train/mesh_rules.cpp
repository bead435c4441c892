#include "lehr/train/mesh_rules.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"

namespace lehr::train {

namespace {
void check_pipeline(const TrainConfig& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  if (parallelism.pipeline_parallel_degree == 1) {
    return;
  }
  const int64_t together = parallelism.pipeline_parallel_microbatch_size;
  require(
      together <= 0 || config.training.local_batch_size % together == 0,
      "parallelism.pipeline_parallel_microbatch_size: must divide training.local_batch_size ({}), found {}",
      config.training.local_batch_size,
      together);
  require(
      together <= 0 || together == config.training.local_batch_size ||
          (config.training.router_aux_loss_coef == 0 && config.training.router_z_loss_coef == 0),
      "parallelism.pipeline_parallel_microbatch_size: router losses are computed per micro-batch, so they would depend "
      "on it; set training.local_batch_size to {} as well, or the coefficients (training.router_aux_loss_coef, "
      "router_z_loss_coef) to 0",
      together);
  require(
      together <= 0 || together == config.training.local_batch_size || config.training.task != TaskKind::embedding,
      "parallelism.pipeline_parallel_microbatch_size: the negatives of training.task = \"embedding\" are the texts of a "
      "micro-batch, so the loss would depend on it; set training.local_batch_size to {} as well, or leave the key out",
      together);
}

// Context parallelism cuts sequences into two parts per rank, tensor parallelism cuts each of these into one per rank.
int64_t sequence_parts(const mesh::DeviceMeshParameters& mesh) {
  return (mesh.context_parallel > 1 ? 2 * mesh.context_parallel : 1) * mesh.tensor_parallel;
}

void check_sequence_parts(int64_t seq_len, const mesh::DeviceMeshParameters& mesh) {
  const int64_t parts = sequence_parts(mesh);
  std::vector<std::string> causes;
  if (mesh.context_parallel > 1) {
    causes.push_back(
        fmt::format("context_parallel_degree {} (twice that, to balance the load of ranks)", mesh.context_parallel));
  }
  if (mesh.tensor_parallel > 1) {
    causes.push_back(fmt::format("tensor_parallel_degree {}", mesh.tensor_parallel));
  }
  require(
      seq_len % parts == 0,
      "training.seq_len: must be a multiple of {} for {}, found {}",
      parts,
      fmt::join(causes, " times "),
      seq_len);
}
}  // namespace

void check_model_on_mesh(int64_t seq_len, const descriptor::ModelArgs& args, const mesh::DeviceMeshParameters& mesh) {
  check_sequence_parts(seq_len, mesh);
  require(
      mesh.expert_parallel == 1 || args.has_experts(),
      "parallelism.expert_parallel_degree: expected 1, because the model has no experts, found {}",
      mesh.expert_parallel);
}

void check_padding(const TrainConfig& config, const mesh::DeviceMeshParameters& mesh) {
  if (!reads_whole_texts(config.training.task)) {
    return;
  }
  const int64_t multiple = config.data.datasets.front().pad_to_multiple_of;
  require(
      multiple % mesh.tensor_parallel == 0,
      "data.datasets.0.pad_to_multiple_of: must be a multiple of parallelism.tensor_parallel_degree ({}), so that "
      "texts have the same padding as on one device, found {}",
      mesh.tensor_parallel,
      multiple);
  require(
      multiple % sequence_parts(mesh) == 0,
      "data.datasets.0.pad_to_multiple_of: must be a multiple of {} for parallelism.context_parallel_degree {} (twice "
      "that, to balance the load of ranks) times tensor_parallel_degree {}, found {}",
      sequence_parts(mesh),
      mesh.context_parallel,
      mesh.tensor_parallel,
      multiple);
}

void check_mesh(const TrainConfig& config, const descriptor::ModelArgs& args, const Ranks& ranks) {
  const TrainingConfig& training = config.training;
  const int64_t row_ranks = ranks.data_parallel_size();
  require(
      training.global_batch_size % (training.local_batch_size * row_ranks) == 0,
      "training.global_batch_size: must be a multiple of training.local_batch_size ({}) times the {} data-parallel "
      "ranks (data_parallel_replicate x data_parallel_shard), found {}",
      training.local_batch_size,
      row_ranks,
      training.global_batch_size);
  if (ranks.world_size() == 1) {
    return;
  }
  const auto& mesh = ranks.context()->parameters();
  check_model_on_mesh(training.seq_len, args, mesh);
  check_padding(config, mesh);
  check_pipeline(config);
  require(
      !config.sample.prompt || mesh.context_parallel == 1,
      "sample.prompt: generation adds tokens to whole sequences, of which a rank of context_parallel has a part; "
      "remove this key, and use lehr generate on a checkpoint");
}

}  // namespace lehr::train
