#include "lehr/nn/rms_norm.h"

#include "lehr/ops/rms_norm.h"

namespace lehr::nn {

RMSNormImpl::RMSNormImpl(int64_t normalized_size, double eps) : eps_(eps) {
  declare_parameter("weight", weight, {normalized_size}, Init::ones());
}

at::Tensor RMSNormImpl::forward(const at::Tensor& input) {
  return ops::rms_norm(input, weight, eps_);
}

}  // namespace lehr::nn
