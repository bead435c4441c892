// Root-mean-square layer normalization (Zhang and Sennrich, https://arxiv.org/abs/1910.07467).
#pragma once

#include "lehr/nn/module.h"
#include "lehr/ops/rms_norm.h"

namespace lehr::nn {

using ops::NormWeight;

/// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension; statistics in float32 (float64 for float64). With
/// zero-centered weights 1 + weight multiplies, and the weight starts at 0.
class RMSNormImpl : public Module {
 public:
  explicit RMSNormImpl(int64_t normalized_size, double eps = 1e-6, NormWeight kind = NormWeight::plain);

  /// Maps (..., normalized_size) to the same shape and type.
  at::Tensor forward(const at::Tensor& input);

  double eps() const { return eps_; }
  NormWeight kind() const { return kind_; }

  at::Tensor weight;  // (normalized_size)

 private:
  double eps_;
  NormWeight kind_;
};
LEHR_MODULE(RMSNorm);

}  // namespace lehr::nn
