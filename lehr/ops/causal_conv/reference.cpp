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

at::Tensor causal_conv(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& cumulative_lengths,
    const at::Tensor& before,
    const at::Tensor& bias) {
  const int64_t rows = x.size(0), tokens = x.size(1), width = weight.size(2), most = width - 1;
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor flat = x.flatten(2).to(wide);          // (B, T, D)
  const at::Tensor taps = weight.to(wide).flatten(0, 1);  // (D, W)
  at::Tensor sum = flat * taps.select(1, most);
  if (bias.defined()) {
    sum = sum + bias.to(wide);
  }
  at::Tensor earlier;  // (B, T)
  if (cumulative_lengths.defined()) {
    earlier = tokens_before(cumulative_lengths, rows * tokens).view({rows, tokens});
    const at::Tensor of_first = earlier == at::arange(tokens, earlier.options());
    earlier = before.defined() ? at::where(of_first, earlier + most, earlier) : earlier;
  }
  const at::Tensor longer =  // (B, W - 1 + T, D)
      before.defined() ? at::cat({before.flatten(2).to(wide), flat}, 1) : flat;
  const int64_t more = longer.size(1) - tokens;
  for (int64_t j = 1; j < std::min(width, more + tokens); ++j) {
    const int64_t missing = std::max<int64_t>(0, j - more), count = tokens - missing;
    at::Tensor tap = longer.narrow(1, more + missing - j, count) * taps.select(1, most - j);
    if (earlier.defined()) {
      tap = tap * (earlier.narrow(1, missing, count) >= j).unsqueeze(-1);
    }
    sum = sum + (missing > 0 ? at::cat({at::zeros_like(flat.narrow(1, 0, missing)), tap}, 1) : tap);
  }
  return at::silu(sum).to(x.scalar_type()).view(x.sizes());
}

}  // namespace lehr::ops::reference
