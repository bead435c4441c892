#include "lehr/model/latent_moe_config.h"

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/deepseek_moe_config.h"

namespace lehr::model {

namespace {
constexpr const char* kSharedWidth = "moe_shared_expert_intermediate_size";
constexpr const char* kLatentSize = "moe_latent_size";

void refuse_shared_experts(const Node& config) {
  const int64_t shared = int_or(config, "n_shared_experts", 1);
  require(
      shared == 1,
      "{}: n_shared_experts: expected 1, found {}; the width of the shared expert is {}",
      config.origin(),
      shared,
      kSharedWidth);
}
}  // namespace

MoEConfig read_latent_moe(const Node& config) {
  refuse_shared_experts(config);
  MoEConfig moe{
      .num_experts = int_or(config, "n_routed_experts", 8),
      .num_experts_per_tok = int_or(config, "num_experts_per_tok", 2),
      .moe_intermediate_size = int_or(config, "moe_intermediate_size", 7688),
      .norm_topk_prob = bool_or(config, "norm_topk_prob", true),
      .expert_bias = true,
      .shared_expert_intermediate_size = int_or(config, kSharedWidth, 7688),
      .router = read_deepseek_router(config, deepseek_router(1, 1, 1))};
  require_size(config.origin() + ": ", kSharedWidth, moe.shared_expert_intermediate_size);
  if (const auto latent = optional_int(config, kLatentSize)) {
    require_size(config.origin() + ": ", kLatentSize, *latent);
    moe.moe_latent_size = *latent;
  }
  const int64_t local = int_or(config, "num_local_experts", moe.num_experts);
  require(
      local == moe.num_experts,
      "{}: num_local_experts: defines the same as n_routed_experts ({}), found {}; remove one of them",
      config.origin(),
      moe.num_experts,
      local);
  return moe;
}

void write_latent_moe(const MoEConfig& moe, Node& config) {
  write_deepseek_moe(moe, config);
  config.erase("first_k_dense_replace");
  config.set("n_shared_experts", Node(int64_t{1}));
  config.set(kSharedWidth, Node(moe.shared_expert_intermediate_size));
  if (moe.moe_latent_size > 0) {
    config.set(kLatentSize, Node(moe.moe_latent_size));
  }
}

void check_latent_moe(const MoEConfig& moe) {
  check_expert_bias(moe);
  require(
      moe.decoder_sparse_step == 1 && moe.mlp_only_layers.empty(),
      "{}: in models of this type, hybrid_override_pattern says which layers have experts; remove this key",
      moe.mlp_only_layers.empty() ? "decoder_sparse_step" : "mlp_only_layers");
}

}  // namespace lehr::model
