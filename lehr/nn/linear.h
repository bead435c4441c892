// The linear layer.
#pragma once

#include "lehr/nn/module.h"

namespace lehr::nn {

/// y = x W^T (+ b), with W (out_features, in_features). Every matrix-product weight of a model is one of these, so that
/// what is done to weights (shards, adapters, delayed gradients) is done in one place.
class LinearImpl : public Module {
 public:
  LinearImpl(int64_t in_features, int64_t out_features, Init init = Init::normal(0.02), bool bias = false);
  ~LinearImpl() override;

  /// Maps (..., in_features) to (..., out_features).
  at::Tensor forward(const at::Tensor& input);

  /// Reads the weight of another module from now on, instead of a parameter of its own: tied weights.
  void read_weight_from(const ParameterPtr& other);

  at::Tensor weight;  // (out_features, in_features)
  at::Tensor bias;    // (out_features), undefined without bias

 private:
  ParameterPtr tied_;  // the other module's, which knows `weight` as a slot
};
TORCH_MODULE(Linear);

}  // namespace lehr::nn
