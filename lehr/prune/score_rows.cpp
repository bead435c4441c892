#include "lehr/prune/score_rows.h"

#include "lehr/base/error.h"

namespace lehr::prune {

at::Tensor counted_rows(const at::Tensor& activations, const at::Tensor& counted) {
  const at::Tensor rows = activations.reshape({-1, activations.size(-1)});
  return counted.defined() ? rows.index({counted.flatten()}) : rows;
}

void TokenMean::add(const at::Tensor& sum, int64_t tokens) {
  sum_ = sum_.defined() ? sum_ + sum : sum;
  tokens_ += tokens;
}

void TokenMean::reset() {
  *this = TokenMean();
}

at::Tensor TokenMean::value() const {
  require(tokens_ > 0, "scores: no token was seen; they are means over tokens");
  require(sum_.isfinite().all().item<bool>(), "scores: the model's activations are not finite, so they say nothing");
  return sum_ / tokens_;
}

}  // namespace lehr::prune
