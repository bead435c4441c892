// Names of tensors, and the order of their rows, in checkpoints whose layers have one mixer each, as Mamba-2's have.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lehr/model/mamba2_config.h"
#include "lehr/state/state_map.h"

namespace lehr::model {

/// The beginning of the names of the backbone's stored tensors; transformers renames it to "model." on loading.
inline constexpr const char* kBackbonePrefix = "backbone.";

/// Returns `map`, whose inputs have the names of the model's modules, with the published names:
///
/// | stored | parameters |
/// | --- | --- |
/// | backbone.embeddings.weight | model.embed_tokens |
/// | backbone.norm_f.weight | model.norm.weight |
/// | backbone.layers.*.mixer.* | model.layers.*.{mamba,self_attn,mlp}.*; experts have the names of decoder_state_map |
/// | backbone.layers.*.norm.weight | model.layers.*.{attention_norm,ffn_norm}.weight |
/// | ...mixer.conv1d.{weight,bias} | ...mamba.conv1d.{x,b,c} and ...{x,b,c}_bias, split by rows |
/// | ...mixer.in_proj.weight: rows of z, x, B, C, dt | ...mamba.in_proj.weight: the same rows, group by group |
///
/// Tensors of a bare backbone have no prefix.
state::StateMap with_mixer_names(const state::StateMap& map, const Mamba2Config& sizes);

/// Returns the parameter that each stored tensor holds (of a convolution, the first one), and the tensor. The mixer of
/// a layer follows from the names of its tensors.
std::vector<std::pair<std::string, std::string>> mixer_module_names(const std::vector<std::string>& stored);

}  // namespace lehr::model
