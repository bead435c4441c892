// Requirements of a mesh on a run's config and model, and unsupported combinations.
#pragma once

#include "lehr/train/config.h"
#include "lehr/train/ranks.h"

namespace lehr::train {

/// Throws a usage error that names the keys and the remedy, for sizes that the degrees do not divide, and for options
/// that such a mesh does not support. Runs before anything is allocated. `config.training.global_batch_size`
/// must be resolved.
void check_mesh(const TrainConfig& config, const descriptor::ModelArgs& args, const Ranks& ranks);

/// The part of check_mesh that also holds without training: of a model's forward on sequences of `seq_len` tokens.
void check_model_on_mesh(int64_t seq_len, const descriptor::ModelArgs& args, const mesh::DeviceMeshParameters& mesh);

/// Throws a usage error if batches of labelled texts, which are as long as their longest text, would need padding that
/// one device does not have: a float8 scale is the largest of all positions.
void check_padding(const TrainConfig& config, const mesh::DeviceMeshParameters& mesh);

}  // namespace lehr::train
