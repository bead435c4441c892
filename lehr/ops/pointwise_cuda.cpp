// The loss of chunks of logits, and token permutation, on a GPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lehr/base/operation_meter.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/cuda.h"

namespace lehr::ops::cuda {

using cpu::elements;

void cross_entropy_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale) {
  check_devices("linear_cross_entropy", {logits, labels, losses, row_scale});
  report_pointwise({logits, gradient ? logits : at::Tensor(), losses});
  run<RestTable>("linear_cross_entropy", logits, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const CrossEntropyCall<T> call{
        .logits = elements<T>(logits),
        .labels = elements<int64_t>(labels),
        .losses = elements<float>(losses),
        .row_scale = elements<float>(row_scale),
        .size = logits.size(1),
        .gradient = gradient};
    return kernels.cross_entropy(call, logits.size(0));
  });
}

at::Tensor copy_tokens(const at::Tensor& tokens, const at::Tensor& inverse) {
  check_devices("permute_tokens", {tokens, inverse});
  const int64_t rows = inverse.size(0);
  require(
      tokens.dim() == 2 && tokens.size(0) > 0 && rows % tokens.size(0) == 0,
      "permute_tokens: expected tokens (N, H) for a permutation of {} copies, found {}",
      rows,
      shape_of(tokens));
  const at::Tensor copies = at::empty({rows, tokens.size(1)}, tokens.options());
  report_moved({copies, copies});
  run<RestTable>("permute_tokens", tokens, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    return kernels.copy_tokens(
        elements<T>(tokens),
        elements<int64_t>(inverse),
        elements<T>(copies),
        tokens.size(0),
        rows / tokens.size(0),
        tokens.size(1));
  });
  return copies;
}

namespace {
template <class T>
TokenCopies<T> copies_call(
    const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices) {
  return {
      .sorted = elements<T>(sorted),
      .weights = elements<T>(weights),
      .inverse = elements<int64_t>(inverse),
      .choices = choices,
      .size = sorted.size(1)};
}
}  // namespace

at::Tensor sum_copies(const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices) {
  check_devices("combine_tokens", {sorted, weights, inverse});
  require(
      sorted.dim() == 2 && sorted.size(0) == inverse.size(0) && inverse.size(0) % choices == 0 &&
          (!weights.defined() || weights.numel() == inverse.size(0)),
      "combine_tokens: expected results of {} copies, found {}",
      inverse.size(0),
      shape_of(sorted));
  const int64_t tokens = inverse.size(0) / choices;
  const at::Tensor out = at::empty({tokens, sorted.size(1)}, sorted.options());
  report_moved({sorted, out});
  run<RestTable>("combine_tokens", sorted, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    return kernels.sum_copies(copies_call<T>(sorted, weights, inverse, choices), elements<T>(out), tokens);
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> sum_copies_backward(
    const at::Tensor& dout,
    const at::Tensor& sorted,
    const at::Tensor& weights,
    const at::Tensor& inverse,
    cpu::GradMask wanted) {
  const at::Tensor dsorted = wanted.x ? at::empty_like(sorted) : at::Tensor();
  const at::Tensor dweights = wanted.weight ? at::empty_like(weights) : at::Tensor();
  report_moved({sorted, dout, sorted});
  run<RestTable>("combine_tokens_backward", sorted, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    return kernels.sum_copies_backward(
        copies_call<T>(sorted, weights, inverse, weights.size(1)),
        elements<T>(dout),
        elements<T>(dsorted),
        elements<T>(dweights),
        weights.size(0));
  });
  return {dsorted, dweights};
}

}  // namespace lehr::ops::cuda
