// The definition of the causal convolution in plain ATen.
#include <algorithm>

#include "lehr/ops/causal_conv/causal_conv.h"

namespace lehr::ops::reference {

namespace {
// The number of tokens before each of `count` tokens in its sequence.
at::Tensor tokens_before(const at::Tensor& cumulative_lengths, int64_t count) {
  const at::Tensor borders = cumulative_lengths.to(at::kLong);
  const at::Tensor tokens = at::arange(count, borders.options());
  return tokens - borders.index({at::searchsorted(borders, tokens, /*out_int32=*/false, /*right=*/true) - 1});
}
}  // namespace

at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& cumulative_lengths) {
  const int64_t rows = x.size(0), tokens = x.size(1), width = weight.size(2);
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor flat = x.flatten(2).to(wide);          // (B, T, D)
  const at::Tensor taps = weight.to(wide).flatten(0, 1);  // (D, W)
  at::Tensor sum = flat * taps.select(1, width - 1);
  const at::Tensor earlier = cumulative_lengths.defined()
                                 ? tokens_before(cumulative_lengths, rows * tokens).view({rows, tokens})
                                 : at::Tensor();  // (B, T)
  for (int64_t j = 1; j < std::min(width, tokens); ++j) {
    at::Tensor before = flat.narrow(1, 0, tokens - j) * taps.select(1, width - 1 - j);
    if (earlier.defined()) {
      before = before * (earlier.narrow(1, j, tokens - j) >= j).unsqueeze(-1);
    }
    sum = sum + at::cat({at::zeros_like(flat.narrow(1, 0, j)), before}, 1);
  }
  return at::silu(sum).to(x.scalar_type()).view(x.sizes());
}

}  // namespace lehr::ops::reference
