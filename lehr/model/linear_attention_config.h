// The fields of config.json for gated DeltaNet, in models in which it replaces attention in some layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lehr/config/node.h"
#include "lehr/model/layer_sizes.h"

namespace lehr::descriptor {
struct GatedDeltaNetForm;
}
namespace lehr::nn {
struct GatedDeltaNetParameters;
}

namespace lehr::model {

/// The sizes of nn::GatedDeltaNet, with Hugging Face's names and the defaults of transformers' Qwen3NextConfig.
struct LinearAttentionConfig {
  int64_t linear_conv_kernel_dim = 4;
  int64_t linear_key_head_dim = 128;
  int64_t linear_value_head_dim = 128;
  int64_t linear_num_key_heads = 16;
  int64_t linear_num_value_heads = 32;
  std::vector<bool> layers = {true, true, true, false};  ///< Layers with linear attention; the list repeats.

  bool is_linear(int64_t layer) const { return layers[static_cast<size_t>(layer) % layers.size()]; }
  /// FLOPs of forward and backward beside those of the weights: per value head, a token reads the state by its key and
  /// by its query, and writes it, K V multiply-adds each.
  int64_t flops_per_token() const;
  /// The gated DeltaNet of a layer with these sizes.
  nn::GatedDeltaNetParameters parameters(const LayerSizes& sizes) const;
  /// The sizes that decide its number of parameters and its memory.
  descriptor::GatedDeltaNetForm form() const;

  /// Reads the sizes and layer_types, or full_attention_interval. Throws a usage error that names the layer for another
  /// type, and for another number of layers.
  static LinearAttentionConfig from_hf(const Node& config, int64_t num_hidden_layers);
  /// Writes the sizes, and layer_types of `num_hidden_layers` layers.
  void to_hf(Node& config, int64_t num_hidden_layers) const;
  /// Throws a usage error that names the field, prefixed with `where`, for a size that is not positive or too large,
  /// and if value heads are not a multiple of key heads.
  void check(const std::string& where) const;
};

}  // namespace lehr::model
