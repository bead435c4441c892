// The keys of config.json for the heads of Gemma 4's layers without a window.
#pragma once

#include "lehr/model/decoder_config.h"

namespace lehr::model {

/// Reads global_head_dim, attention_k_eq_v and num_global_key_value_heads, or per_layer_config in place of the first
/// and the third, as transformers 5 writes them. `shape` has the types of layers and the model's heads. Throws a usage
/// error that names the key for layers of one type with different heads.
FullAttentionHeads read_full_attention_heads(const Node& config, const DecoderConfig& shape);

/// Writes the published keys, and per_layer_config for a number of key/value heads that those cannot express: another
/// one than the model's without attention_k_eq_v.
void write_full_attention_heads(const DecoderConfig& shape, Node& config);

}  // namespace lehr::model
