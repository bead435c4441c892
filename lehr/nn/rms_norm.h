// Root-mean-square layer normalization (Zhang and Sennrich, https://arxiv.org/abs/1910.07467).
#pragma once

#include "lehr/nn/module.h"
#include "lehr/ops/rms_norm/rms_norm.h"

namespace lehr::nn {

using ops::NormWeight;

/// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension; statistics in float32 (float64 for float64). A
/// zero-centered weight is initialized to 0, and the factor is 1 + weight.
class RMSNormImpl : public Module {
 public:
  explicit RMSNormImpl(int64_t normalized_size, double eps = 1e-6, NormWeight kind = NormWeight::plain);

  /// Maps (..., normalized_size) to the same shape and dtype.
  at::Tensor forward(const at::Tensor& input);

  double eps() const { return eps_; }
  NormWeight kind() const { return kind_; }

  at::Tensor weight;  // (normalized_size)

 private:
  double eps_;
  NormWeight kind_;
};
LEHR_MODULE(RMSNorm);

/// The same without a weight.
at::Tensor rms_norm(const at::Tensor& input, double eps);

}  // namespace lehr::nn
