#include "lehr/prune/score_rows.h"

#include "lehr/base/error.h"

namespace lehr::prune {

at::Tensor counted_rows(const at::Tensor& activations, const at::Tensor& counted) {
  const at::Tensor rows = activations.reshape({-1, activations.size(-1)});
  return counted.defined() ? rows.index({counted.flatten()}) : rows;
}

at::Tensor require_finite(const at::Tensor& scores) {
  require(
      scores.isfinite().all().item<bool>(),
      "scores: the model's activations or weights are not finite, so scores are meaningless");
  return scores;
}

void TokenMean::add(const at::Tensor& sum, int64_t tokens) {
  sum_ = sum_.defined() ? sum_ + sum : sum;
  tokens_ += tokens;
}

void TokenMean::reset() {
  *this = TokenMean();
}

at::Tensor TokenMean::value() const {
  require(tokens_ > 0, "scores: no token was seen; scores are means over tokens");
  return require_finite(sum_) / tokens_;
}

}  // namespace lehr::prune
