#include "lehr/nn/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lehr/base/error.h"
#include "lehr/memory/side_stream.h"

namespace lehr::nn {

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

namespace {
std::vector<double> plain_frequencies(double base, int64_t dim) {
  std::vector<double> frequencies(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
  }
  return frequencies;
}

double yarn_attention_scaling(const YarnRopeScaling& yarn) {
  if (yarn.attention_factor) {
    return *yarn.attention_factor;
  }
  if (yarn.mscale && yarn.mscale_all_dim && *yarn.mscale != 0 && *yarn.mscale_all_dim != 0) {
    return yarn_mscale(yarn.factor, *yarn.mscale) / yarn_mscale(yarn.factor, *yarn.mscale_all_dim);
  }
  return yarn_mscale(yarn.factor, 1);
}

// The dimension whose frequency completes `rotations` turns over the trained length.
double yarn_correction_dim(double rotations, double base, int64_t dim, double trained_length) {
  return static_cast<double>(dim) * std::log(trained_length / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(base));
}

struct Scale {
  double base;
  int64_t dim;
  int64_t length;

  RotaryFrequencies operator()(const NoRopeScaling&) const { return {plain_frequencies(base, dim), 1}; }

  RotaryFrequencies operator()(const LinearRopeScaling& linear) const {
    RotaryFrequencies result{plain_frequencies(base, dim), 1};
    for (double& frequency : result.inverse_frequencies) {
      frequency /= linear.factor;
    }
    return result;
  }

  RotaryFrequencies operator()(const DynamicNtkRopeScaling& ntk) const {
    const auto trained = static_cast<double>(ntk.original_max_position_embeddings);
    const double now = std::max(static_cast<double>(length), trained);
    const double stretch = ntk.factor * now / trained - (ntk.factor - 1);
    const double d = static_cast<double>(dim);
    return {plain_frequencies(base * std::pow(stretch, d / (d - 2)), dim), 1};
  }

  RotaryFrequencies operator()(const YarnRopeScaling& yarn) const {
    const auto trained = static_cast<double>(yarn.original_max_position_embeddings);
    double low = yarn_correction_dim(yarn.beta_fast, base, dim, trained);
    double high = yarn_correction_dim(yarn.beta_slow, base, dim, trained);
    if (yarn.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(dim - 1));
    if (low == high) {
      high += 0.001;
    }
    RotaryFrequencies result{plain_frequencies(base, dim), yarn_attention_scaling(yarn)};
    for (size_t i = 0; i < result.inverse_frequencies.size(); ++i) {
      double& frequency = result.inverse_frequencies[i];
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      frequency = frequency / yarn.factor * ramp + frequency * (1 - ramp);
    }
    return result;
  }

  RotaryFrequencies operator()(const Llama3RopeScaling& llama) const {
    RotaryFrequencies result{plain_frequencies(base, dim), 1};
    const auto trained = static_cast<double>(llama.original_max_position_embeddings);
    for (double& frequency : result.inverse_frequencies) {
      const double wavelength = 2 * std::numbers::pi / frequency;
      if (wavelength > trained / llama.low_freq_factor) {
        frequency /= llama.factor;
      } else if (wavelength >= trained / llama.high_freq_factor) {
        const double smooth =
            (trained / wavelength - llama.low_freq_factor) / (llama.high_freq_factor - llama.low_freq_factor);
        frequency = (1 - smooth) * frequency / llama.factor + smooth * frequency;
      }
    }
    return result;
  }

  RotaryFrequencies operator()(const ProportionalRopeScaling& scaling) const {
    RotaryFrequencies result{plain_frequencies(base, dim), 1};
    const auto rotated = static_cast<size_t>(scaling.partial_rotary_factor * static_cast<double>(dim) / 2);
    for (size_t i = 0; i < result.inverse_frequencies.size(); ++i) {
      result.inverse_frequencies[i] = i < rotated ? result.inverse_frequencies[i] / scaling.factor : 0;
    }
    return result;
  }
};
}  // namespace

namespace {
void require_positive(const char* what, double value) {
  require(value > 0, "rope_scaling: {}: expected a positive number, found {}", what, value);
}

// Rejects values that would make angles infinite or undefined.
struct CheckScaling {
  int64_t dim;

  void operator()(const NoRopeScaling&) const {}
  void operator()(const LinearRopeScaling& s) const { require_positive("factor", s.factor); }
  void operator()(const DynamicNtkRopeScaling& s) const {
    require(s.factor >= 1, "rope_scaling: factor: expected at least 1, found {}", s.factor);
    require_positive("original_max_position_embeddings", static_cast<double>(s.original_max_position_embeddings));
    require(dim > 2, "rope_scaling: dynamic needs a head_dim above 2, found {}", dim);
  }
  void operator()(const YarnRopeScaling& s) const {
    require_positive("factor", s.factor);
    require_positive("original_max_position_embeddings", static_cast<double>(s.original_max_position_embeddings));
    require_positive("beta_slow", s.beta_slow);
    require(
        s.beta_fast >= s.beta_slow,
        "rope_scaling: beta_fast: expected at least beta_slow ({}), found {}",
        s.beta_slow,
        s.beta_fast);
  }
  void operator()(const Llama3RopeScaling& s) const {
    require_positive("factor", s.factor);
    require_positive("original_max_position_embeddings", static_cast<double>(s.original_max_position_embeddings));
    require_positive("low_freq_factor", s.low_freq_factor);
    require(
        s.high_freq_factor > s.low_freq_factor,
        "rope_scaling: high_freq_factor: expected more than low_freq_factor ({}), found {}",
        s.low_freq_factor,
        s.high_freq_factor);
  }
  void operator()(const ProportionalRopeScaling& s) const {
    require_positive("factor", s.factor);
    require(
        s.partial_rotary_factor >= 0 && s.partial_rotary_factor <= 1,
        "rope_scaling: partial_rotary_factor: expected a number from 0 to 1, found {}",
        s.partial_rotary_factor);
  }
};
}  // namespace

RotaryFrequencies rotary_frequencies(
    const RopeScaling& scaling, double rope_base, int64_t rotary_dim, int64_t sequence_length) {
  return std::visit(Scale{rope_base, rotary_dim, sequence_length}, scaling);
}

RotaryEmbeddingProvider::RotaryEmbeddingProvider(double rope_base, int64_t rotary_dim, RopeScaling scaling)
    : rope_base_(rope_base), rotary_dim_(rotary_dim), scaling_(std::move(scaling)) {
  require(
      rotary_dim > 0 && rotary_dim % 2 == 0,
      "rotary dimension: expected an even positive number, found {}",
      rotary_dim);
  require(rope_base > 0, "rope_base: expected a positive number, found {}", rope_base);
  std::visit(CheckScaling{rotary_dim}, scaling_);
}

PositionEmbeddings RotaryEmbeddingProvider::operator()(
    const at::Tensor& position_ids, at::ScalarType compute_dtype) const {
  at::NoGradGuard no_grad;
  int64_t length = 0;
  if (depends_on_length() && position_ids.numel() > 0 && !position_ids.is_meta()) {
    const at::Tensor largest = position_ids.max().reshape({1});
    if (reduce_) {
      reduce_(largest);
    }
    length = largest.item<int64_t>() + 1;
  }
  const auto frequencies = rotary_frequencies(scaling_, rope_base_, rotary_dim_, length);
  const bool keeps = position_ids.is_cuda() && !depends_on_length();
  at::Tensor inverse = keeps ? on_gpu_ : at::Tensor();  // (D/2)
  if (!inverse.defined() || inverse.device() != position_ids.device()) {
    inverse = to_device_pinned(at::tensor(frequencies.inverse_frequencies, at::kDouble), position_ids.device());
    on_gpu_ = keeps ? inverse : at::Tensor();
  }
  at::Tensor angles = position_ids.unsqueeze(-1).to(at::kDouble) * inverse;  // (B, T, D/2)
  angles = at::cat({angles, angles}, -1);                                    // (B, T, D)
  const auto dtype = compute_dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {
      (angles.cos() * frequencies.attention_scaling).to(dtype),
      (angles.sin() * frequencies.attention_scaling).to(dtype)};
}

}  // namespace lehr::nn
