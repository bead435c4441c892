// The fields of a mixture of experts in Hugging Face's config.json.
#pragma once

#include <string>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/descriptor/model_args.h"

namespace lehr::model {

/// The shape of a mixture of experts, with Hugging Face's names.
struct MoEConfig {
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = true;
  int64_t decoder_sparse_step = 1;            ///< Every n-th layer has experts, the others one SwiGLU.
  std::vector<int64_t> mlp_only_layers = {};  ///< Layers without experts.
  bool expert_bias = false;                   ///< Lehr's own: experts are chosen by probability + bias.
  double router_aux_loss_coef = 0.001;        ///< Kept for transformers; training takes training.router_aux_loss_coef.

  /// Whether the layer of this number has experts, where no block config says so.
  bool has_experts(int64_t layer) const;

  /// Reads the fields of config.json, in both spellings (num_experts, num_local_experts).
  static MoEConfig from_hf(const Node& config);
  /// Writes them into a config.json.
  void to_hf(Node& config) const;

  void apply(const descriptor::ModelOverrides& overrides);
  /// Throws a usage error that names the field, behind `where`, when the shape does not fit together.
  void check(const std::string& where, int64_t num_hidden_layers) const;
};

/// Whether transformers gives the layer of this number (from 0) experts.
bool layer_has_experts(
    int64_t layer, int64_t num_experts, int64_t decoder_sparse_step, const std::vector<int64_t>& mlp_only_layers);

/// Throws a usage error if the overrides name experts, for families that have none.
void refuse_experts(const descriptor::ModelOverrides& overrides);

}  // namespace lehr::model
