// The fields of config.json for models whose layers have one mixer each: Mamba-2, attention, a feed-forward block or
// experts.
#pragma once

#include <cstdint>
#include <string>

#include "lehr/config/node.h"
#include "lehr/model/layer_sizes.h"

namespace lehr::descriptor {
struct Mamba2Form;
}
namespace lehr::nn {
struct Mamba2Parameters;
}

namespace lehr::model {

/// The kind of a layer, by its letter in hybrid_override_pattern.
enum class Mixer : char { mamba = 'M', attention = '*', feed_forward = '-', experts = 'E' };

/// True for the mixers whose sub-block is that of a feed-forward block.
inline bool mixes_channels(Mixer mixer) {
  return mixer == Mixer::feed_forward || mixer == Mixer::experts;
}

/// The sizes of nn::Mamba2, with Hugging Face's names and the defaults of transformers' NemotronHConfig, and the
/// mixers.
struct Mamba2Config {
  int64_t mamba_num_heads = 128;
  int64_t mamba_head_dim = 64;
  int64_t n_groups = 8;
  int64_t ssm_state_size = 128;
  int64_t conv_kernel = 4;
  bool use_conv_bias = true;
  double time_step_min = 0.001;
  double time_step_max = 0.1;
  double time_step_floor = 1e-4;
  std::string pattern = "M-*-";  ///< A Mixer for each layer; repeats.

  Mixer mixer(int64_t layer) const { return static_cast<Mixer>(pattern[static_cast<size_t>(layer) % pattern.size()]); }
  bool has_experts() const { return pattern.find(static_cast<char>(Mixer::experts)) != std::string::npos; }
  /// Moves the mixers, so that layer i + count has that of layer i; count >= 0.
  void shift(int64_t count);
  /// Width of x and z.
  int64_t inner_size() const { return mamba_num_heads * mamba_head_dim; }
  /// FLOPs of forward and backward of a Mamba-2 block beside those of its weights: per head, a token writes the state
  /// and reads it, N P multiply-adds each.
  int64_t flops_per_token() const { return 12 * inner_size() * ssm_state_size; }
  /// The Mamba-2 block of a layer with these sizes.
  nn::Mamba2Parameters parameters(const LayerSizes& sizes) const;
  /// The sizes that decide its number of parameters and its memory.
  descriptor::Mamba2Form form() const;

  /// Reads the sizes and hybrid_override_pattern, or layers_block_type. Throws a usage error that names the layer for
  /// another kind of mixer, and for another number of layers.
  static Mamba2Config from_hf(const Node& config, int64_t num_hidden_layers);
  /// Writes the sizes, and hybrid_override_pattern of `num_hidden_layers` layers.
  void to_hf(Node& config, int64_t num_hidden_layers) const;
  /// Throws a usage error that names the field, prefixed with `where`, for a size that is not positive or too large,
  /// if heads are not a multiple of groups, and for limits of time steps that contradict each other.
  void check(const std::string& where) const;
};

}  // namespace lehr::model
