// The config.json fields that decoder-only families share. Reads the formats of transformers 4 and 5, writes that of
// transformers 4, which both read.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/model/latent_attention_config.h"
#include "lehr/model/layer_pattern.h"
#include "lehr/model/linear_attention_config.h"
#include "lehr/model/mamba2_config.h"
#include "lehr/model/moe_config.h"
#include "lehr/nn/rotary.h"

namespace lehr::model {

/// The shape of a decoder-only model, with Hugging Face's names.
struct DecoderConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  nn::RopeScaling rope_scaling = nn::NoRopeScaling{};
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  std::optional<int64_t> bos_token_id = {};
  std::vector<int64_t> eos_token_id = {};
  std::optional<int64_t> pad_token_id = {};
  descriptor::Head head = descriptor::Head::causal_lm;
  int64_t num_labels = 2;
  std::map<std::string, int64_t> split_vocab_size = {};  ///< Empty: one segment. Not in config.json.
  std::vector<std::string> split_vocab_order = {};
  double classifier_dropout = 0;
  bool token_classification_bias = true;  ///< Of the head, if it classifies tokens.
  std::optional<MoEConfig> moe = {};      ///< For families with experts.
  /// One block config per layer if layers differ; empty if the fields above describe all layers.
  std::vector<descriptor::BlockConfig> block_configs = {};
  bool qkv_bias = false;                       ///< Biases of the query, key and value projections,
  bool output_bias = false;                    ///< and of the output projection.
  std::optional<double> attention_scale = {};  ///< Factor on the scores; 1 / sqrt(head_dim) if unset.
  LayerPattern pattern = {};                   ///< Windows, and layers without rotary positions.
  std::optional<Rope> sliding_rope = {};       ///< Of layers with a window, if it is not rope_theta, rope_scaling.
  double partial_rotary_factor = 1;            ///< The part of each head that is rotated, its leading elements.
  bool qk_norm = false;  ///< RMSNorm of each query and key head, in families whose config.json says so.
  /// In place of grouped-query attention. head_dim is then the number of rotated elements.
  std::optional<LatentAttentionConfig> latent_attention = {};

  /// In place of grouped-query attention in some layers.
  std::optional<LinearAttentionConfig> linear_attention = {};
  /// For families whose layers have one mixer each, Mamba-2 in some of them.
  std::optional<Mamba2Config> mamba2 = {};

  /// Modules for multi-token prediction: those of the published folder, and whether the model keeps them.
  int64_t num_nextn_predict_layers = 0;
  bool keeps_mtp_modules = false;

  /// Of layers without a window, if they have other heads; head_dim and num_key_value_heads are then of the others.
  std::optional<FullAttentionHeads> full_attention = {};
  std::optional<double> final_logit_softcapping = {};  ///< Of the logits (ops/logit_softcap.h).

  int64_t hidden_size_per_layer_input = 0;  ///< Width of the per-layer inputs (model/per_layer_inputs.h); 0: none.
  int64_t num_kv_shared_layers = 0;         ///< The last layers, which read keys and values of earlier ones.
  bool use_double_wide_mlp = false;         ///< Their feed-forward blocks have twice the intermediate_size.

  /// The number of modules for multi-token prediction that the model has.
  int64_t mtp_modules() const {
    return keeps_mtp_modules && head == descriptor::Head::causal_lm ? num_nextn_predict_layers : 0;
  }
  /// Rotated elements of a head.
  int64_t rotary_dim() const { return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor); }
  /// Width of a query head of a layer, and of a value head.
  int64_t query_width(int64_t layer) const {
    return latent_attention                           ? latent_attention->qk_head_dim()
           : full_attention && !pattern.slides(layer) ? full_attention->head_dim
                                                      : head_dim;
  }
  int64_t value_width(int64_t layer) const {
    return latent_attention ? latent_attention->v_head_dim : query_width(layer);
  }
  /// True for a layer that attends to keys and values of an earlier one.
  bool reads_keys_and_values(int64_t layer) const {
    return descriptor::reads_keys_and_values(layer, num_hidden_layers, num_kv_shared_layers);
  }
  /// Inner width of the feed-forward block of a layer without experts, unless a block config has another.
  int64_t ffn_width(int64_t layer) const {
    return use_double_wide_mlp && reads_keys_and_values(layer) ? 2 * intermediate_size : intermediate_size;
  }
  /// Key and value heads of a layer with grouped-query attention, unless a block config has others.
  int64_t key_value_heads(int64_t layer) const {
    const bool own = full_attention && full_attention->num_key_value_heads > 0 && !pattern.slides(layer);
    return own ? full_attention->num_key_value_heads : num_key_value_heads;
  }

  /// Reads the fields of config.json that families share. Throws a usage error that names the field for a feature that
  /// the shared decoder does not support (attention dropout, another activation, ...), except for keys in `own_keys`,
  /// which the family reads itself.
  static DecoderConfig from_hf(const Node& config, std::span<const char* const> own_keys = {});

  /// True for a layer with gated DeltaNet or Mamba-2, whose state takes flops_of_states() per token, forward and
  /// backward, beside the FLOPs of its weights.
  bool has_states(int64_t layer) const;
  int64_t flops_of_states() const;

  /// Shifts the settings that differ between layers: layer i + count gets those of layer i; count >= 0.
  void shift_layers(int64_t count);

  /// The window of a layer: that of its block config, or that of the pattern; nullopt for full attention.
  std::optional<int64_t> window(int64_t layer) const;

  /// Returns one block config per layer, from block_configs or from the fields that apply to all layers.
  std::vector<descriptor::BlockConfig> blocks() const;
  /// Sets the config of each layer: in the fields above if they can express it, with block_configs empty, else in
  /// block_configs.
  void set_blocks(std::vector<descriptor::BlockConfig> blocks);
  /// The shape of a model whose layers all match this block; values that the block does not set are unchanged.
  DecoderConfig of_block(const descriptor::BlockConfig& block) const;

  /// Throws a usage error for an override of a value that block_configs defines.
  void apply(const descriptor::ModelOverrides& overrides);
  /// Throws a usage error that names the field, prefixed with `where`, for an inconsistent shape.
  void check(const std::string& where) const;
};

/// Writes config.json. `architecture_prefix` is a name such as "Qwen3", to which the head's suffix is appended.
Node to_hf(
    const DecoderConfig& config,
    const std::string& model_type,
    const std::string& architecture_prefix,
    const std::string& dtype);

}  // namespace lehr::model
