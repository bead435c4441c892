#include "lehr/nn/layer_norm.h"

#include "lehr/base/error.h"

namespace lehr::nn {

LayerNormImpl::LayerNormImpl(int64_t normalized_size, double eps, bool with_bias) : eps_(eps) {
  require(eps > 0, "LayerNorm: eps: expected a positive number, found {}", eps);
  declare_parameter("weight", weight, {normalized_size}, Init::ones());
  if (with_bias) {
    declare_parameter("bias", bias, {normalized_size}, Init::zeros());
  }
}

at::Tensor LayerNormImpl::forward(const at::Tensor& input) {
  return at::layer_norm(input, {weight.size(0)}, weight, bias, eps_);
}

}  // namespace lehr::nn
