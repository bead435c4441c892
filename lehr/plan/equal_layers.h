// Whether one measured layer can stand for all layers of a model, as a search over meshes needs.
#pragma once

#include <cstdint>
#include <string>

#include "lehr/descriptor/model_args.h"
#include "lehr/train/config.h"
#include "lehr/train/train_spec.h"

namespace lehr::plan {

/// Returns how the windows of attention differ between layers, for sequences of `seq_len` tokens: "a token sees up to
/// 512 tokens in layer 0, and 4096 in layer 5, ..."; empty if they do not.
std::string difference_of_windows(const descriptor::ModelArgs& args, int64_t seq_len);

/// Throws a usage error if layers of the model `args` differ (block configs; a state in place of attention; shared keys
/// and values; per-layer inputs) by more than their windows, except for dense layers before its MoE layers,
/// or if a key of the model is for its own number of layers, so that models of fewer layers cannot be measured.
void require_equal_layers(
    const train::TrainConfig& config, const train::TrainSpec& spec, const descriptor::ModelArgs& args);

}  // namespace lehr::plan
