// The fields of config.json for the experts of Nemotron 3: the router of DeepSeek-V3, one shared expert with a width of
// its own, and, with a latent size, LatentMoE (https://arxiv.org/abs/2601.18089).
#pragma once

#include "lehr/config/node.h"
#include "lehr/model/moe_config.h"

namespace lehr::model {

/// Reads the experts, with the defaults of transformers' NemotronHConfig. Throws a usage error that names the key for
/// experts of another kind.
MoEConfig read_latent_moe(const Node& config);

/// Writes them, in place of the keys of MoEConfig::to_hf.
void write_latent_moe(const MoEConfig& moe, Node& config);

/// Throws a usage error that names the key if layers with experts are chosen by another key than the pattern of mixers,
/// and for experts without a bias.
void check_latent_moe(const MoEConfig& moe);

}  // namespace lehr::model
