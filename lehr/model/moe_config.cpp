#include "lehr/model/moe_config.h"

#include <algorithm>
#include <numeric>

#include "lehr/base/error.h"
#include "lehr/config/node_list.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_limits.h"

namespace lehr::model {

bool layer_has_experts(
    int64_t layer, int64_t num_experts, int64_t decoder_sparse_step, const std::vector<int64_t>& mlp_only_layers) {
  const bool excepted = std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) != mlp_only_layers.end();
  return !excepted && num_experts > 0 && (layer + 1) % decoder_sparse_step == 0;
}

void MoEConfig::set_dense_layers(int64_t count) {
  mlp_only_layers.resize(static_cast<size_t>(count));
  std::iota(mlp_only_layers.begin(), mlp_only_layers.end(), 0);
}

bool MoEConfig::has_experts(int64_t layer) const {
  return layer_has_experts(layer, num_experts, decoder_sparse_step, mlp_only_layers);
}

MoEConfig MoEConfig::from_hf(const Node& config) {
  MoEConfig moe;
  // The name in transformers 5 is num_local_experts; a message names the older one.
  const auto experts = optional_int(config, "num_experts"), local_experts = optional_int(config, "num_local_experts");
  require(
      !experts || !local_experts || *experts == *local_experts,
      "{}: num_local_experts: defines the same as num_experts ({}), found {}; remove one of them",
      config.origin(),
      experts.value_or(0),
      local_experts.value_or(0));
  moe.num_experts = local_experts ? *local_experts : config.at("num_experts").as_int();
  moe.num_experts_per_tok = config.at("num_experts_per_tok").as_int();
  const char* width = config.find("moe_intermediate_size") != nullptr ? "moe_intermediate_size" : "intermediate_size";
  moe.moe_intermediate_size = config.at(width).as_int();
  moe.norm_topk_prob = bool_or(config, "norm_topk_prob", false);
  moe.decoder_sparse_step = int_or(config, "decoder_sparse_step", 1);
  moe.expert_bias = bool_or(config, "expert_bias", false);
  moe.router_aux_loss_coef = double_or(config, "router_aux_loss_coef", 0.001);
  if (const Node* layers = config.find("mlp_only_layers"); layers != nullptr && !layers->is_null()) {
    for (const Node& layer : layers->items()) {
      moe.mlp_only_layers.push_back(layer.as_int());
    }
  }
  return moe;
}

void MoEConfig::to_hf(Node& node) const {
  node.set("decoder_sparse_step", Node(decoder_sparse_step));
  if (expert_bias) {
    node.set("expert_bias", Node(true));  // not a field of transformers
  }
  node.set("mlp_only_layers", node_list(mlp_only_layers));
  node.set("moe_intermediate_size", Node(moe_intermediate_size));
  node.set("norm_topk_prob", Node(norm_topk_prob));
  node.set("num_experts", Node(num_experts));
  node.set("num_experts_per_tok", Node(num_experts_per_tok));
  node.set("router_aux_loss_coef", Node(router_aux_loss_coef));
}

void MoEConfig::apply(const descriptor::ModelOverrides& o) {
  num_experts = o.num_experts.value_or(num_experts);
  num_experts_per_tok = o.num_experts_per_tok.value_or(num_experts_per_tok);
  moe_intermediate_size = o.moe_intermediate_size.value_or(moe_intermediate_size);
  norm_topk_prob = o.norm_topk_prob.value_or(norm_topk_prob);
  decoder_sparse_step = o.decoder_sparse_step.value_or(decoder_sparse_step);
  expert_bias = o.expert_bias.value_or(expert_bias);
  if (!o.mlp_only_layers.empty()) {
    mlp_only_layers = o.mlp_only_layers;
  }
}

void set_uniform_experts(MoEConfig& moe) {
  moe.norm_topk_prob = true;
  moe.decoder_sparse_step = 1;
  moe.mlp_only_layers.clear();
  moe.uses_intermediate_size = true;
}

void require_one_expert_width(const Node& config) {
  const auto width = optional_int(config, "moe_intermediate_size"), usual = optional_int(config, "intermediate_size");
  const Node* blocks = config.find("block_configs");
  require(
      !width || !usual || *width == *usual || (blocks != nullptr && !blocks->is_null()),
      "{}: moe_intermediate_size: transformers' class of this model type does not read it, and its experts have "
      "intermediate_size; expected that ({}), found {}; remove one of the two",
      config.origin(),
      usual.value_or(0),
      width.value_or(0));
}

void check_uniform_experts(const MoEConfig& moe, const char* model_type) {
  require(
      moe.norm_topk_prob && moe.decoder_sparse_step == 1 && moe.mlp_only_layers.empty(),
      "{}: models of type {} have experts in every layer, whose weights sum to one; remove this key",
      !moe.norm_topk_prob           ? "norm_topk_prob"
      : moe.mlp_only_layers.empty() ? "decoder_sparse_step"
                                    : "mlp_only_layers",
      model_type);
}

void write_uniform_experts(const MoEConfig& moe, bool sizes_differ, Node& config) {
  config.set("num_local_experts", Node(moe.num_experts));
  for (const char* key : {"decoder_sparse_step", "mlp_only_layers", "norm_topk_prob", "num_experts"}) {
    config.erase(key);
  }
  if (!sizes_differ) {
    config.set("intermediate_size", Node(moe.moe_intermediate_size));
    config.erase("moe_intermediate_size");
  }
}

void refuse_experts(const descriptor::ModelOverrides& o) {
  require(
      !o.num_experts && !o.num_experts_per_tok && !o.moe_intermediate_size && !o.norm_topk_prob &&
          !o.decoder_sparse_step && !o.expert_bias && o.mlp_only_layers.empty(),
      "model.args.{}: this family has no experts; set model.name = \"qwen3_moe\"",
      o.num_experts             ? "num_experts"
      : o.num_experts_per_tok   ? "num_experts_per_tok"
      : o.moe_intermediate_size ? "moe_intermediate_size"
      : o.norm_topk_prob        ? "norm_topk_prob"
      : o.decoder_sparse_step   ? "decoder_sparse_step"
      : o.expert_bias           ? "expert_bias"
                                : "mlp_only_layers");
}

void MoEConfig::check(const std::string& where, int64_t num_hidden_layers) const {
  require_size(where, "num_experts", num_experts, kMostExperts);
  require_size(where, "num_experts_per_tok", num_experts_per_tok);
  require_size(where, "moe_intermediate_size", moe_intermediate_size);
  require_size(where, "decoder_sparse_step", decoder_sparse_step);
  require(
      num_experts_per_tok <= num_experts,
      "{}num_experts_per_tok: expected at most num_experts ({}), found {}",
      where,
      num_experts,
      num_experts_per_tok);
  try {
    nn::TopKRouterParameters{
        .hidden_size = 1, .num_experts = num_experts, .top_k = num_experts_per_tok, .options = router}
        .check();
  } catch (const Error& error) {
    fail("{}{}", where, error.what());
  }
  require(
      router_aux_loss_coef >= 0,
      "{}router_aux_loss_coef: expected 0 or a positive number, found {}",
      where,
      router_aux_loss_coef);
  for (const int64_t layer : mlp_only_layers) {
    require(
        layer >= 0 && layer < num_hidden_layers,
        "{}mlp_only_layers: expected layers from 0 to {}, found {}",
        where,
        num_hidden_layers - 1,
        layer);
  }
}

}  // namespace lehr::model
