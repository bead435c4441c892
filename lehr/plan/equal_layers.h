// Whether one measured layer can stand for all layers of a model, as a search over meshes needs.
#pragma once

#include <cstdint>

#include "lehr/descriptor/model_args.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// Returns the number of layers before the first one with experts; 0 for a model without experts.
int64_t leading_dense_layers(const descriptor::ModelArgs& args);

/// Throws a usage error if layers of the model `args` differ (block configs; a state in place of attention; windows
/// within training.seq_len; shared keys and values; per-layer inputs), except for dense layers before its MoE layers,
/// or if a key of the model is for its own number of layers, so that models of fewer layers cannot be measured.
void require_equal_layers(
    const train::TrainConfig& config, const train::TrainSpec& spec, const descriptor::ModelArgs& args);

}  // namespace lehr::plan
