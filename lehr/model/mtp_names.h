// Names of the tensors of modules for multi-token prediction in published checkpoints, and the number of modules.
#pragma once

#include "lehr/descriptor/config_update.h"
#include "lehr/model/decoder_config.h"
#include "lehr/state/state_map.h"

namespace lehr::model {

/// The names under which a family stores module k of a model with N layers.
enum class MtpNames {
  /// As layer N + k: model.layers.N.{enorm,hnorm,eh_proj}, the tensors of a decoder layer, shared_head.norm, and copies
  /// of embeddings and head, embed_tokens and shared_head.head (DeepSeek-V3, GLM-4.5).
  following_layers,
  /// mtp.{pre_fc_norm_embedding,pre_fc_norm_hidden,fc,norm} and mtp.layers.0: one module (Qwen3-Next).
  own_module,
};

/// The beginning of the modules' parameter names.
inline constexpr const char* kMtpPrefix = "mtp.";

/// Returns the map with these names for the inputs of modules, in place of those of their parameters (mtp.0.enorm, ...,
/// mtp.0.layer.self_attn.q_proj, ...).
state::StateMap with_mtp_names(const state::StateMap& map, MtpNames names, int64_t num_hidden_layers);

/// Returns the map from the tensors of a folder, with the modules' copies of embeddings and head, to those without;
/// empty if there are no modules, or none of their tensors is a copy.
state::StateMap mtp_copies(MtpNames names, const DecoderConfig& config);

/// Reads num_nextn_predict_layers. A config.json without the key has one, as all published models do. Throws a usage
/// error that names the key for a number of modules that a checkpoint has no names for, or too large a number.
int64_t read_mtp_modules(MtpNames names, const Node& config);

/// Throws a usage error that names the key, prefixed with `where`, for modules of a model whose layers differ.
void check_mtp(const DecoderConfig& config, const std::string& where);

}  // namespace lehr::model
