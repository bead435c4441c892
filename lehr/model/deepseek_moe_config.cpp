#include "lehr/model/deepseek_moe_config.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_limits.h"

namespace lehr::model {

namespace {
void refuse_unsupported(const Node& config) {
  const auto expect = [&](const char* key, const std::string& expected) {
    const Node* found = config.find(key);
    require(
        found == nullptr || found->is_null() || (found->is_string() && found->as_string() == expected),
        "{}: {}: expected {}, found another value; this is not supported",
        config.origin(),
        key,
        expected);
  };
  expect("scoring_func", "sigmoid");
  expect("topk_method", "noaux_tc");
  require(
      int_or(config, "moe_layer_freq", 1) == 1,
      "{}: moe_layer_freq: expected 1, found another value; this is not supported",
      config.origin());
}
}  // namespace

nn::RouterOptions deepseek_router(int64_t n_group, int64_t topk_group, double routed_scaling_factor) {
  return {
      .score = nn::RouterScore::sigmoid,
      .n_group = n_group,
      .topk_group = topk_group,
      .norm_eps = 1e-20,
      .routed_scaling_factor = routed_scaling_factor};
}

nn::RouterOptions read_deepseek_router(const Node& config, const nn::RouterOptions& defaults) {
  return deepseek_router(
      int_or(config, "n_group", defaults.n_group),
      int_or(config, "topk_group", defaults.topk_group),
      double_or(config, "routed_scaling_factor", defaults.routed_scaling_factor));
}

MoEConfig deepseek_experts(
    int64_t num_experts, int64_t num_experts_per_tok, int64_t width, const nn::RouterOptions& router) {
  return {
      .num_experts = num_experts,
      .num_experts_per_tok = num_experts_per_tok,
      .moe_intermediate_size = width,
      .expert_bias = true,
      .router = router};
}

MoEConfig read_deepseek_moe(const Node& config, const DeepseekMoEDefaults& defaults) {
  refuse_unsupported(config);
  MoEConfig moe{
      .num_experts = config.at("n_routed_experts").as_int(),
      .num_experts_per_tok = config.at("num_experts_per_tok").as_int(),
      .moe_intermediate_size = config.at("moe_intermediate_size").as_int(),
      .norm_topk_prob = bool_or(config, "norm_topk_prob", true),
      .expert_bias = true,
      .n_shared_experts = int_or(config, "n_shared_experts", 1),
      .router = read_deepseek_router(config, defaults.router)};
  require_size(config.origin() + ": ", "n_shared_experts", moe.n_shared_experts, kMostExperts);
  const int64_t dense = int_or(config, "first_k_dense_replace", defaults.first_k_dense_replace);
  const int64_t layers = config.at("num_hidden_layers").as_int();
  require(
      dense >= 0 && dense <= kMostLayers && dense <= std::max<int64_t>(layers, 0),
      "{}: first_k_dense_replace: expected 0 to num_hidden_layers ({}), found {}",
      config.origin(),
      layers,
      dense);
  moe.set_dense_layers(dense);
  return moe;
}

void write_deepseek_moe(const MoEConfig& moe, Node& config) {
  for (const char* key :
       {"decoder_sparse_step", "expert_bias", "mlp_only_layers", "num_experts", "router_aux_loss_coef"}) {
    if (config.find(key) != nullptr) {
      config.erase(key);
    }
  }
  config.set("n_routed_experts", Node(moe.num_experts));
  config.set("n_shared_experts", Node(moe.n_shared_experts));
  config.set("first_k_dense_replace", Node(static_cast<int64_t>(moe.mlp_only_layers.size())));
  config.set("n_group", Node(moe.router.n_group));
  config.set("topk_group", Node(moe.router.topk_group));
  config.set("routed_scaling_factor", Node(moe.router.routed_scaling_factor));
}

void check_expert_bias(const MoEConfig& moe) {
  require(moe.expert_bias, "expert_bias: expected true, which models of this type always have, found false");
}

void check_deepseek_moe(const MoEConfig& moe) {
  check_expert_bias(moe);
  require(
      moe.decoder_sparse_step == 1,
      "decoder_sparse_step: expected 1, found {}; models of this type have experts in all layers but the first ones",
      moe.decoder_sparse_step);
  for (size_t i = 0; i < moe.mlp_only_layers.size(); ++i) {
    require(
        moe.mlp_only_layers[i] == static_cast<int64_t>(i),
        "mlp_only_layers: expected the first layers (0, 1, ...), which config.json of this model type can express, "
        "found {}",
        moe.mlp_only_layers[i]);
  }
}

}  // namespace lehr::model
