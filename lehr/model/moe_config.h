// The MoE fields of Hugging Face's config.json.
#pragma once

#include <string>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/nn/experts.h"
#include "lehr/nn/router.h"

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
  bool uses_intermediate_size = false;        ///< moe_intermediate_size is the key intermediate_size (Mixtral).
  int64_t n_shared_experts = 0;  ///< Experts that every token uses: one expert, as wide as all of these together.
  int64_t shared_expert_intermediate_size = 0;  ///< Inner width of a shared expert with a gate (Qwen3-Next).
  bool beside_dense = false;    ///< The layer also has a feed-forward block of intermediate_size (Gemma 4).
  int64_t moe_latent_size = 0;  ///< Width of the tokens that routed experts map (Nemotron 3 Super); 0: hidden_size.
  nn::RouterOptions router = {};
  nn::ExpertOptions experts = {};

  /// Inner width of the shared expert, of either kind; 0: none.
  int64_t shared_expert_width() const {
    return n_shared_experts * moe_intermediate_size + shared_expert_intermediate_size;
  }
  /// Makes the first `count` layers those without experts.
  void set_dense_layers(int64_t count);

  /// True if layer `layer` (from 0) has experts, unless a block config overrides it.
  bool has_experts(int64_t layer) const;

  /// Reads the fields of config.json under both names (num_experts, num_local_experts). Without moe_intermediate_size,
  /// experts have the intermediate_size.
  static MoEConfig from_hf(const Node& config);
  /// Writes the fields into a config.json.
  void to_hf(Node& config) const;

  void apply(const descriptor::ModelOverrides& overrides);
  /// Throws a usage error that names the field, prefixed with `where`, for an inconsistent shape.
  void check(const std::string& where, int64_t num_hidden_layers) const;
};

/// @name For families with experts in every layer, whose weights sum to one and whose width is intermediate_size
/// (Mixtral, gpt-oss, MiniMax M2)
/// @{

/// Resets the values of keys that transformers' classes of these families do not read.
void set_uniform_experts(MoEConfig& moe);
/// Throws a usage error for a moe_intermediate_size, which these classes do not read either, that is not the
/// intermediate_size. Beside block_configs it is Lehr's key.
void require_one_expert_width(const Node& config);
/// Throws a usage error that names the key for other experts. `model_type` is that of config.json.
void check_uniform_experts(const MoEConfig& moe, const char* model_type);
/// Replaces the keys of MoEConfig::to_hf; `sizes_differ` between layers, and block_configs has them.
void write_uniform_experts(const MoEConfig& moe, bool sizes_differ, Node& config);
/// @}

/// True if layer `layer` (from 0) has experts by transformers' rule.
bool layer_has_experts(
    int64_t layer, int64_t num_experts, int64_t decoder_sparse_step, const std::vector<int64_t>& mlp_only_layers);

/// Throws a usage error if the overrides set a field of experts; called by families without experts.
void refuse_experts(const descriptor::ModelOverrides& overrides);

}  // namespace lehr::model
