// Copies of tokens per chosen expert, and their weighted sums, on the CPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstring>

#include "lehr/base/operation_meter.h"
#include "lehr/ops/cpu.h"

namespace lehr::ops::cpu {

namespace {
template <class T>
TokenCopies<T> copies_of(
    const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices) {
  return {
      .sorted = elements<T>(sorted),
      .weights = elements<T>(weights),
      .inverse = elements<int64_t>(inverse),
      .choices = choices,
      .size = sorted.size(1)};
}
}  // namespace

at::Tensor copy_tokens(const at::Tensor& tokens, const at::Tensor& order) {
  at::Tensor copies = at::empty({order.size(0), tokens.size(1)}, tokens.options());
  report_pointwise({copies, copies});  // as many rows are read as written
  const int64_t choices = tokens.size(0) > 0 ? order.size(0) / tokens.size(0) : 1;
  const auto bytes = static_cast<size_t>(tokens.size(1)) * tokens.element_size();
  run_kernel(tokens, 0, order.size(0), grain_for(tokens.size(1)), [&](int64_t first, int64_t last) {
    const auto* from = static_cast<const std::byte*>(tokens.const_data_ptr());
    auto* to = static_cast<std::byte*>(copies.mutable_data_ptr());
    const int64_t* copy = order.const_data_ptr<int64_t>();
    for (int64_t row = first; row < last; ++row) {
      std::memcpy(
          to + static_cast<size_t>(row) * bytes, from + static_cast<size_t>(copy[row] / choices) * bytes, bytes);
    }
  });
  return copies;
}

at::Tensor sum_copies(const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices) {
  const int64_t tokens = inverse.size(0) / choices;
  at::Tensor out = at::empty({tokens, sorted.size(1)}, sorted.options());
  report_pointwise({sorted, out});
  with_element_type(sorted.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    run_kernel(sorted, 0, tokens, grain_for(choices * sorted.size(1)), [&](int64_t first, int64_t last) {
      kernel.sum_copies(copies_of<T>(sorted, weights, inverse, choices), elements<T>(out), first, last);
    });
  });
  return out;
}

std::tuple<at::Tensor, at::Tensor> sum_copies_backward(
    const at::Tensor& dout,
    const at::Tensor& sorted,
    const at::Tensor& weights,
    const at::Tensor& inverse,
    GradMask wanted) {
  at::Tensor dsorted = wanted.x ? at::empty_like(sorted) : at::Tensor();
  at::Tensor dweights = wanted.weight ? at::empty_like(weights) : at::Tensor();
  report_pointwise({dout, wanted.weight ? sorted : at::Tensor(), dsorted});
  with_element_type(sorted.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const int64_t grain = grain_for(weights.size(1) * sorted.size(1));
    run_kernel(sorted, 0, weights.size(0), grain, [&](int64_t first, int64_t last) {
      kernel.sum_copies_backward(
          copies_of<T>(sorted, weights, inverse, weights.size(1)),
          elements<T>(dout),
          elements<T>(dsorted),
          elements<T>(dweights),
          first,
          last);
    });
  });
  return {dsorted, dweights};
}

}  // namespace lehr::ops::cpu
