#include "lehr/nn/rms_norm.h"

namespace lehr::nn {

RMSNormImpl::RMSNormImpl(int64_t normalized_size, double eps, NormWeight kind) : eps_(eps), kind_(kind) {
  declare_parameter("weight", weight, {normalized_size}, kind == NormWeight::plain ? Init::ones() : Init::zeros());
}

at::Tensor RMSNormImpl::forward(const at::Tensor& input) {
  return ops::rms_norm(input, weight, eps_, kind_);
}

at::Tensor rms_norm(const at::Tensor& input, double eps) {
  return ops::rms_norm(input, at::ones({input.size(-1)}, input.options()), eps);
}

}  // namespace lehr::nn
