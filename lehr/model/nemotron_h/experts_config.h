// The fields of config.json for the experts of Nemotron-H (Nemotron 3).
#pragma once

#include "lehr/config/node.h"
#include "lehr/model/decoder_config.h"
#include "lehr/nn/moe.h"

namespace lehr::model {

/// Reads the experts, with the defaults of transformers' NemotronHConfig. Throws a usage error that names the key for
/// experts of another kind.
MoEConfig read_nemotron_h_experts(const Node& config);

/// Writes them, in place of the keys of MoEConfig::to_hf.
void write_nemotron_h_experts(const MoEConfig& moe, Node& config);

/// Throws a usage error that names the key if layers with experts are chosen by another key than the pattern of mixers,
/// and for experts without a bias.
void check_nemotron_h_experts(const MoEConfig& moe);

/// Returns the MoE layer of these experts: of squared ReLU, including the shared one; with a latent size, the routed
/// ones are between two projections (LatentMoE).
nn::MoEParameters nemotron_h_experts(const MoEConfig& moe, int64_t hidden_size, nn::Init init);

}  // namespace lehr::model
