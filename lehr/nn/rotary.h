// Rotary position embeddings (Su et al., https://arxiv.org/abs/2104.09864) and the ways to stretch them to longer
// sequences, with the formulas of Hugging Face transformers' modeling_rope_utils.
#pragma once

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "lehr/nn/module.h"

namespace lehr::nn {

/// cos and sin of the rotation angles, each (B or 1, T, rotary_dim); both halves of the last dimension are equal.
using PositionEmbeddings = std::pair<at::Tensor, at::Tensor>;

/// Frequencies as trained.
struct NoRopeScaling {};

/// All frequencies divided by `factor` (position interpolation).
struct LinearRopeScaling {
  double factor = 1;
};

/// NTK-aware scaling that depends on the sequence at hand: the base grows once positions pass the trained length.
struct DynamicNtkRopeScaling {
  double factor = 1;
  int64_t original_max_position_embeddings = 0;
};

/// YaRN (Peng et al., https://arxiv.org/abs/2309.00071).
struct YarnRopeScaling {
  double factor = 1;
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  std::optional<double>
      attention_factor;  ///< Factor on cos and sin; without it 0.1 ln(factor) + 1 (with mscale below).
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  bool truncate = true;  ///< Round the borders of the ramp to whole dimensions.
};

/// YaRN's factor for a stretch by `factor`: 1 up to 1, and 0.1 mscale ln(factor) + 1 above. Models that set
/// mscale_all_dim (DeepSeek) multiply the softmax's scale by the square of yarn_mscale(factor, mscale_all_dim).
double yarn_mscale(double factor, double mscale);

/// Llama 3's smooth interpolation between scaled and unscaled frequencies by wavelength.
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

using RopeScaling =
    std::variant<NoRopeScaling, LinearRopeScaling, DynamicNtkRopeScaling, YarnRopeScaling, Llama3RopeScaling>;

/// The rotary frequencies of one model.
struct RotaryFrequencies {
  std::vector<double> inverse_frequencies;  ///< rotary_dim / 2 values, radians a position.
  double attention_scaling = 1;             ///< Factor on cos and sin.
};

/// Frequencies for a sequence of `sequence_length` positions (only dynamic NTK depends on it).
RotaryFrequencies rotary_frequencies(
    const RopeScaling& scaling, double rope_base, int64_t rotary_dim, int64_t sequence_length);

/// Turns positions into rotation angles. It has no parameters and no tables: angles are computed in float64 and rounded
/// once, to float32, or not at all when the model computes in float64. They are never rounded to bfloat16.
class RotaryEmbeddingProvider {
 public:
  RotaryEmbeddingProvider(double rope_base, int64_t rotary_dim, RopeScaling scaling = NoRopeScaling{});

  /// cos and sin for `position_ids` (B, T) int64, on the same device; float64 if `compute_dtype` is, else float32.
  PositionEmbeddings operator()(const at::Tensor& position_ids, at::ScalarType compute_dtype) const;

 private:
  double rope_base_;
  int64_t rotary_dim_;
  RopeScaling scaling_;
  mutable at::Tensor on_gpu_;  // the frequencies, where they depend on nothing: a copy would be in each step's way
};

}  // namespace lehr::nn
