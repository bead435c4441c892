// Comparison of the shape that a model folder declares with the tensors that it holds.
#pragma once

#include <filesystem>

#include "lehr/pretrained/weights.h"

namespace lehr::pretrained {

/// check_checkpoint before memory is allocated, for a model on meta whose shape is that of `config`, a config.json.
/// Messages end with the sizes in `config`, one of which is wrong if shapes or names differ.
CheckpointDifference check_declared_shape(
    const std::filesystem::path& config,
    const descriptor::ModelArgs& args,
    const nn::Module& model,
    const state::StateMap& map,
    const state::WeightReader& reader,
    const LoadRules& rules = {});

}  // namespace lehr::pretrained
