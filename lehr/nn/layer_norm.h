// Layer normalization (Ba et al., https://arxiv.org/abs/1607.06450).
#pragma once

#include "lehr/nn/module.h"

namespace lehr::nn {

/// y = (x - mean(x)) / sqrt(var(x) + eps) * weight (+ bias) over the last dimension, with the biased variance;
/// statistics in float32 (float64 for float64).
class LayerNormImpl : public Module {
 public:
  /// Throws a usage error unless eps is positive.
  explicit LayerNormImpl(int64_t normalized_size, double eps = 1e-5, bool bias = true);

  /// Maps (..., normalized_size) to the same shape and dtype.
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;  // (normalized_size)
  at::Tensor bias;    // (normalized_size), undefined without bias

 private:
  double eps_;
};
LEHR_MODULE(LayerNorm);

}  // namespace lehr::nn
