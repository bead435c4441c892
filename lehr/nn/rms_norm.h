// Root-mean-square layer normalization (Zhang and Sennrich, https://arxiv.org/abs/1910.07467).
#pragma once

#include "lehr/nn/module.h"

namespace lehr::nn {

/// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension; statistics in float32 (float64 for float64).
class RMSNormImpl : public Module {
 public:
  explicit RMSNormImpl(int64_t normalized_size, double eps = 1e-6);

  /// Maps (..., normalized_size) to the same shape and type.
  at::Tensor forward(const at::Tensor& input);

  double eps() const { return eps_; }

  at::Tensor weight;  // (normalized_size)

 private:
  double eps_;
};
TORCH_MODULE(RMSNorm);

}  // namespace lehr::nn
