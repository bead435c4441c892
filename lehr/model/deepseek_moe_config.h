// The fields of config.json for the experts of DeepSeek-V3, which GLM-4.5 has too.
#pragma once

#include "lehr/config/node.h"
#include "lehr/model/decoder_config.h"
#include "lehr/nn/moe.h"

namespace lehr::model {

/// The values of keys that a config.json may lack.
struct DeepseekMoEDefaults {
  int64_t n_group, topk_group, first_k_dense_replace;
  double routed_scaling_factor;
};

/// The router of all of these models: sigmoid scores, with weights that are normalized as in transformers.
nn::RouterOptions deepseek_router(int64_t n_group, int64_t topk_group, double routed_scaling_factor);

/// The experts of a layer, with a bias of the router, and a shared expert whose output is not scaled.
nn::MoEParameters deepseek_experts(const MoEConfig& moe, int64_t hidden_size, nn::Init init);

/// Reads the experts. Throws a usage error that names the key for a router of another kind.
MoEConfig read_deepseek_moe(const Node& config, const DeepseekMoEDefaults& defaults);

/// Writes them, in place of the keys of MoEConfig::to_hf.
void write_deepseek_moe(const MoEConfig& moe, Node& config);

/// Throws a usage error that names the key unless layers without experts are the first ones, and experts have a bias.
void check_deepseek_moe(const MoEConfig& moe);

}  // namespace lehr::model
