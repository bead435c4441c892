// The fields of config.json for the experts of DeepSeek-V3, which GLM-4.5 has too; Nemotron 3 has their router.
#pragma once

#include "lehr/config/node.h"
#include "lehr/model/moe_config.h"
#include "lehr/nn/router.h"

namespace lehr::model {

/// The values of keys that a config.json may lack.
struct DeepseekMoEDefaults {
  nn::RouterOptions router;
  int64_t first_k_dense_replace;
};

/// The router of all of these models: sigmoid scores, with weights that are normalized as in transformers.
nn::RouterOptions deepseek_router(int64_t n_group, int64_t topk_group, double routed_scaling_factor);

/// Reads its options; `defaults` are those of a config.json without the keys.
nn::RouterOptions read_deepseek_router(const Node& config, const nn::RouterOptions& defaults);

/// Experts with such a router and its bias; `width` is moe_intermediate_size. They have no shared expert yet.
MoEConfig deepseek_experts(
    int64_t num_experts, int64_t num_experts_per_tok, int64_t width, const nn::RouterOptions& router);

/// Reads the experts. Throws a usage error that names the key for a router of another kind.
MoEConfig read_deepseek_moe(const Node& config, const DeepseekMoEDefaults& defaults);

/// Writes them, in place of the keys of MoEConfig::to_hf.
void write_deepseek_moe(const MoEConfig& moe, Node& config);

/// Throws a usage error that names the key unless experts have a bias.
void check_expert_bias(const MoEConfig& moe);

/// Throws a usage error that names the key unless layers without experts are the first ones, and experts have a bias.
void check_deepseek_moe(const MoEConfig& moe);

}  // namespace lehr::model
