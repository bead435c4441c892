// The names and the order of rows of Qwen3.5's published tensors.
#pragma once

#include "lehr/model/linear_attention_config.h"
#include "lehr/state/state_map.h"

namespace lehr::model {

/// Returns `map`, whose inputs have the names of the model's modules, with the published names:
///
/// | stored | parameters |
/// | --- | --- |
/// | ...linear_attn.in_proj_qkv.weight, ...in_proj_z.weight | ...in_proj_qkvz.weight: the same rows, by key head |
/// | ...linear_attn.in_proj_b.weight, ...in_proj_a.weight | ...in_proj_ba.weight: the same rows, by key head |
state::StateMap with_qwen3_5_names(const state::StateMap& map, const LinearAttentionConfig& sizes);

}  // namespace lehr::model
