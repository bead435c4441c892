// Rotary position embeddings (Su et al., https://arxiv.org/abs/2104.09864) and their scaling to longer sequences, with
// the formulas of Hugging Face transformers' modeling_rope_utils.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "lehr/nn/module.h"

namespace lehr::nn {

/// cos and sin of the rotation angles, each (B or 1, T, rotary_dim); both halves of the last dimension are equal.
using PositionEmbeddings = std::pair<at::Tensor, at::Tensor>;

/// Frequencies as trained, without scaling.
struct NoRopeScaling {};

/// All frequencies divided by `factor`: position interpolation (Chen et al., https://arxiv.org/abs/2306.15595).
struct LinearRopeScaling {
  double factor = 1;
};

/// Dynamic NTK-aware scaling: the base grows with the sequence length once positions exceed the trained length,
/// original_max_position_embeddings.
struct DynamicNtkRopeScaling {
  double factor = 1;
  int64_t original_max_position_embeddings = 0;
};

/// YaRN (Peng et al., https://arxiv.org/abs/2309.00071).
struct YarnRopeScaling {
  double factor = 1;
  int64_t original_max_position_embeddings = 0;  ///< The trained length.
  double beta_fast = 32;  ///< Frequencies with at least this many turns over the trained length are unchanged.
  double beta_slow = 1;   ///< Those with at most this many are divided by factor; between the two is a linear ramp.
  std::optional<double> attention_factor;  ///< Factor on cos and sin; default 0.1 ln(factor) + 1 (with mscale below).
  std::optional<double> mscale;            ///< DeepSeek's: with both set, the default of attention_factor is
  std::optional<double> mscale_all_dim;    ///< yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim).
  bool truncate = true;                    ///< Round the ends of the ramp to whole dimensions.
};

/// YaRN's attention factor for a scaling by `factor`: 1 for factors up to 1, otherwise 0.1 mscale ln(factor) + 1.
/// Models that set mscale_all_dim (DeepSeek) multiply the softmax's scale by the square of yarn_mscale(factor,
/// mscale_all_dim).
double yarn_mscale(double factor, double mscale);

/// Llama 3's smooth interpolation between scaled and unscaled frequencies by wavelength: frequencies of wavelengths
/// above original_max_position_embeddings / low_freq_factor are divided by `factor`, those below
/// original_max_position_embeddings / high_freq_factor are unchanged.
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

/// Gemma 4's frequencies of full layers: a part of the pairs of a head is rotated, by the highest frequencies of the
/// whole head divided by `factor`; the other pairs have frequency 0. So partial_rotary_factor does not shorten the
/// angles.
struct ProportionalRopeScaling {
  double factor = 1;
  double partial_rotary_factor = 1;  ///< From 0 to 1; the number of rotated pairs is rounded down.
};

using RopeScaling = std::variant<
    NoRopeScaling,
    LinearRopeScaling,
    DynamicNtkRopeScaling,
    YarnRopeScaling,
    Llama3RopeScaling,
    ProportionalRopeScaling>;

/// The rotary frequencies of one model.
struct RotaryFrequencies {
  std::vector<double> inverse_frequencies;  ///< rotary_dim / 2 values, in radians per position.
  double attention_scaling = 1;             ///< Factor on cos and sin.
};

/// Frequencies for a sequence of `sequence_length` positions (only dynamic NTK depends on it).
RotaryFrequencies rotary_frequencies(
    const RopeScaling& scaling, double rope_base, int64_t rotary_dim, int64_t sequence_length);

/// Computes rotation angles from positions. It has no parameters and no tables: angles are computed in float64 and
/// rounded once, to float32, or not at all if the model computes in float64. They are never rounded to bfloat16.
class RotaryEmbeddingProvider {
 public:
  RotaryEmbeddingProvider(double rope_base, int64_t rotary_dim, RopeScaling scaling = NoRopeScaling{});

  /// cos and sin for `position_ids` (B, T) int64, on the same device; float64 if `compute_dtype` is, else float32.
  PositionEmbeddings operator()(const at::Tensor& position_ids, at::ScalarType compute_dtype) const;

  /// Returns whether the frequencies depend on the longest sequence (dynamic NTK).
  bool depends_on_length() const { return std::holds_alternative<DynamicNtkRopeScaling>(scaling_); }
  /// For ranks that hold parts of the sequences: from now on, `reduce` replaces the largest position in place, (1)
  /// int64 on the device of the positions, by that of all these ranks. Called only if depends_on_length().
  void set_largest_over_ranks(std::function<void(const at::Tensor& largest)> reduce) { reduce_ = std::move(reduce); }

 private:
  double rope_base_;
  int64_t rotary_dim_;
  RopeScaling scaling_;
  std::function<void(const at::Tensor& largest)> reduce_;
  mutable at::Tensor on_gpu_;  // cached frequencies if they are constant, which saves a host-to-device copy per step
};

}  // namespace lehr::nn
