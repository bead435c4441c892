// The fields that decoder-only families share in Hugging Face's config.json, read in both spellings (transformers 4 and
// 5) and written in the one of transformers 4, which both read.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lehr/base/node.h"
#include "lehr/descriptor/model_args.h"
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
  std::optional<MoEConfig> moe = {};  ///< For families with experts.
  /// What each layer is, where layers differ; empty if they are as the fields above say.
  std::vector<descriptor::BlockConfig> block_configs = {};

  /// Reads config.json. A feature that the shared decoder does not have (sliding windows, attention dropout, another
  /// activation, ...) is a usage error that names the field.
  static DecoderConfig from_hf(const Node& config);

  /// What each layer is, from block_configs or from the fields that hold for all.
  std::vector<descriptor::BlockConfig> blocks() const;
  /// Lets each layer be what its block says: by the fields above if they can say it, and block_configs is empty then.
  void set_blocks(std::vector<descriptor::BlockConfig> blocks);
  /// The shape whose layers are all as this block; what the block lacks stays as it is.
  DecoderConfig of_block(const descriptor::BlockConfig& block) const;

  /// Throws a usage error for a change of what block_configs says.
  void apply(const descriptor::ModelOverrides& overrides);
  /// Throws a usage error that names the field, behind `where`, when the shape does not fit together.
  void check(const std::string& where) const;
};

/// Writes config.json. `architecture_prefix` is as "Qwen3": the head's suffix is added.
Node to_hf(
    const DecoderConfig& config,
    const std::string& model_type,
    const std::string& architecture_prefix,
    const std::string& dtype);

}  // namespace lehr::model
