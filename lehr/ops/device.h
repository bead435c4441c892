// Device dispatch of the fused operators: each function calls the one of the same name in cuda.h or cpu.h.
// `supports...` tells whether one of the two supports the call.
#pragma once

#include "lehr/ops/cpu.h"
#include "lehr/ops/cuda.h"

namespace lehr::ops {

/// Whether there are kernels for this tensor, on a GPU or the CPU.
inline bool supports(const at::Tensor& tensor) {
  return cuda::supports(tensor) || cpu::supports(tensor);
}

}  // namespace lehr::ops

namespace lehr::ops::dispatch {

/// Whether norms of the rows of x are supported.
inline bool supports_rows(const at::Tensor& x) {
  return cuda::supports(x) ? cuda::supports_rows(x) : cpu::supports(x);
}
/// Whether the rotation of `rotated` elements of each head of x is supported; if `normalized`, fused with a norm.
inline bool supports_rotation(const at::Tensor& x, int64_t rotated, bool normalized) {
  return cuda::supports(x) ? cuda::supports_rotation(x, rotated, normalized)
                           : cpu::supports(x) && (!normalized || x.size(-1) <= kMaxFusedHeadSize);
}

template <class... More>
auto rms_norm_forward(const at::Tensor& x, const More&... more) {
  return cuda::supports(x) ? cuda::rms_norm_forward(x, more...) : cpu::rms_norm_forward(x, more...);
}
template <class... More>
auto rms_norm_backward(const at::Tensor& dy, const More&... more) {
  return cuda::supports(dy) ? cuda::rms_norm_backward(dy, more...) : cpu::rms_norm_backward(dy, more...);
}
template <class... More>
auto rotary(const at::Tensor& x, const More&... more) {
  return cuda::supports(x) ? cuda::rotary(x, more...) : cpu::rotary(x, more...);
}
template <class... More>
auto norm_rotary_forward(const at::Tensor& x, const More&... more) {
  return cuda::supports(x) ? cuda::norm_rotary_forward(x, more...) : cpu::norm_rotary_forward(x, more...);
}
template <class... More>
auto norm_rotary_backward(const at::Tensor& dy, const More&... more) {
  return cuda::supports(dy) ? cuda::norm_rotary_backward(dy, more...) : cpu::norm_rotary_backward(dy, more...);
}
inline at::Tensor copy_tokens(const at::Tensor& tokens, const at::Tensor& order, const at::Tensor& inverse) {
  return cuda::supports(tokens) ? cuda::copy_tokens(tokens, inverse) : cpu::copy_tokens(tokens, order);
}
inline at::Tensor sum_copies(
    const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices) {
  return cuda::supports(sorted) ? cuda::sum_copies(sorted, weights, inverse, choices)
                                : cpu::sum_copies(sorted, weights, inverse, choices);
}
template <class... More>
auto sum_copies_backward(const at::Tensor& dout, const More&... more) {
  return cuda::supports(dout) ? cuda::sum_copies_backward(dout, more...) : cpu::sum_copies_backward(dout, more...);
}
template <class... More>
void cross_entropy_(const at::Tensor& logits, const More&... more) {
  cuda::supports(logits) ? cuda::cross_entropy_(logits, more...) : cpu::cross_entropy_(logits, more...);
}

}  // namespace lehr::ops::dispatch
