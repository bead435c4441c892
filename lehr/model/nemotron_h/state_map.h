// The names and the order of rows of Nemotron-H's published tensors.
#pragma once

#include "lehr/model/mamba2_config.h"
#include "lehr/state/state_map.h"

namespace lehr::model {

/// Returns `map`, whose inputs have the names of the model's modules, with the published names:
///
/// | stored | parameters |
/// | --- | --- |
/// | backbone.embeddings.weight | model.embed_tokens |
/// | backbone.norm_f.weight | model.norm.weight |
/// | backbone.layers.* | model.layers.* |
/// | ...mixer.conv1d.{weight,bias} | ...mixer.conv1d.{x,b,c} and ...{x,b,c}_bias, split by rows |
/// | ...mixer.in_proj.weight: rows of z, x, B, C, dt | ...mixer.in_proj.weight: the same rows, group by group |
///
/// Tensors of a bare backbone have no prefix.
state::StateMap with_nemotron_h_names(const state::StateMap& map, const Mamba2Config& sizes);

}  // namespace lehr::model
