// The MoE fields of Hugging Face's config.json.
#pragma once

#include <string>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/descriptor/model_args.h"

namespace lehr::model {

/// The shape of MoE layers, with Hugging Face's names.
struct MoEConfig {
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = true;
  int64_t decoder_sparse_step = 1;            ///< Every n-th layer is an MoE layer, the others have one SwiGLU.
  std::vector<int64_t> mlp_only_layers = {};  ///< Layers without experts.
  bool expert_bias = false;                   ///< Lehr's own field: experts are selected by probability + bias.
  double router_aux_loss_coef = 0.001;        ///< Kept for transformers; training uses training.router_aux_loss_coef.

  /// True if layer `layer` (from 0) has experts, unless a block config overrides it.
  bool has_experts(int64_t layer) const;

  /// Reads the fields of config.json under both names (num_experts, num_local_experts).
  static MoEConfig from_hf(const Node& config);
  /// Writes the fields into a config.json.
  void to_hf(Node& config) const;

  void apply(const descriptor::ModelOverrides& overrides);
  /// Throws a usage error that names the field, prefixed with `where`, for an inconsistent shape.
  void check(const std::string& where, int64_t num_hidden_layers) const;
};

/// True if layer `layer` (from 0) has experts by transformers' rule.
bool layer_has_experts(
    int64_t layer, int64_t num_experts, int64_t decoder_sparse_step, const std::vector<int64_t>& mlp_only_layers);

/// Throws a usage error if the overrides set a field of experts; called by families without experts.
void refuse_experts(const descriptor::ModelOverrides& overrides);

}  // namespace lehr::model
