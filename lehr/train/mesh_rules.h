// What a mesh asks of a run's config and model, and what cannot be had together yet.
#pragma once

#include "lehr/train/config.h"
#include "lehr/train/ranks.h"

namespace lehr::train {

/// Throws a usage error that names the keys and says what to do: sizes that the degrees do not divide, tasks and
/// options that a mesh of that shape excludes. Nothing is allocated yet. `config.training.global_batch_size` is
/// resolved.
void check_mesh(const TrainConfig& config, const descriptor::ModelArgs& args, const Ranks& ranks);

}  // namespace lehr::train
