// A run before it is planned: its config, with every decision made, and the program of a step.
#pragma once

#include <memory>

#include "lehr/descriptor/model_args.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/pipeline/program.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// A config with every decision made that a run makes when it starts.
struct ResolvedRun {
  train::TrainConfig config;  ///< data_parallel_shard_degree and global_batch_size are numbers.
  mesh::DeviceMeshParameters mesh;
  std::unique_ptr<descriptor::ModelArgs> args;
  int64_t microbatches = 1;  ///< Per step, on each rank.
  int64_t rows = 1;          ///< Sequences per micro-batch.
};

/// Resolves `config` for a world of `devices`; 0: the product of the degrees. Reads no tokenizer or data: the model's
/// shape is checked against the byte tokenizer. Throws the usage errors that the trainer would (train/mesh_rules.h,
/// DeviceMeshParameters::check), and one for data_parallel_shard_degree = -1 without `devices` if another degree is
/// above 1.
ResolvedRun resolve(const train::TrainConfig& config, const train::TrainSpec& spec, int64_t devices = 0);

/// Returns whether parameters stay unsharded for all micro-batches of a step (CostContext::keeps_gathered).
bool keeps_gathered(const train::TrainConfig& config);

/// Returns the program of a step; with one stage, its micro-batches one after the other.
pipeline::Program program_of(const ResolvedRun& run);

}  // namespace lehr::plan
