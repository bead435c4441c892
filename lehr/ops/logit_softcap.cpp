#include "lehr/ops/logit_softcap.h"

#include <cmath>

#include "lehr/base/error.h"

namespace lehr::ops {

at::Tensor softcap(const at::Tensor& logits, std::optional<double> cap) {
  if (!cap) {
    return logits;
  }
  const at::Tensor scaled = logits / *cap;
  return scaled.requires_grad() ? scaled.tanh() * *cap : scaled.tanh_().mul_(*cap);  // logits may be of all words
}

at::Tensor softcap_(const at::Tensor& logits, std::optional<double> cap, bool gradient) {
  if (!cap) {
    return {};
  }
  logits.div_(*cap).tanh_();
  const at::Tensor slope = gradient ? logits.square().neg_().add_(1) : at::Tensor();
  logits.mul_(*cap);
  return slope;
}

void check_softcap(const char* name, std::optional<double> cap) {
  require(
      !cap || (*cap > 0 && std::isfinite(*cap)),
      "{}: softcap: expected a positive number, found {}; leave it out for none",
      name,
      cap.value_or(0));
}

}  // namespace lehr::ops
