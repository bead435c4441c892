// RMSNorm and rotary embedding on a GPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "lehr/base/operation_meter.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/norm_calls.h"

namespace lehr::ops::cuda {

namespace {
using cpu::elements;

/// Buffers of a weight's gradient, valid while the object exists.
template <class T>
class WeightGradientBuffers {
 public:
  WeightGradientBuffers(const at::Tensor& weight, int64_t rows, int64_t threads, bool wanted)
      : count_(weight_gradient_parts(rows, threads)) {
    if (wanted) {
      parts_ = at::empty({count_, weight.size(0)}, weight.options().dtype(at::kFloat));
      sum_ = at::empty_like(weight);
    }
  }
  WeightGradient<T> call() const { return {elements<float>(parts_), count_, elements<T>(sum_)}; }
  const at::Tensor& sum() const { return sum_; }

 private:
  int64_t count_;
  at::Tensor parts_;
  at::Tensor sum_;
};

at::Tensor aligned_or_none(const at::Tensor& tensor) {
  return tensor.defined() ? aligned_for_kernels(tensor) : tensor;
}

std::tuple<at::Tensor, at::Tensor> no_rows(const at::Tensor& x, const at::Tensor& weight, cpu::GradMask wanted) {
  return {wanted.x ? at::empty_like(x) : at::Tensor(), wanted.weight ? at::zeros_like(weight) : at::Tensor()};
}
}  // namespace

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(
    const at::Tensor& unaligned,
    const at::Tensor& unaligned_weight,
    double eps,
    NormWeight kind,
    bool keep,
    const cpu::Added& added) {
  check_devices("rms_norm", {unaligned, unaligned_weight, added.branch});
  const at::Tensor x = aligned_for_kernels(unaligned);
  const at::Tensor weight = aligned_for_kernels(unaligned_weight);
  const cpu::Added aligned_added{aligned_or_none(added.branch), added.sum};
  const at::Tensor y = at::empty_like(x);
  const at::Tensor inverse_rms = rms_buffer(x, keep);
  report_pointwise({x, added.branch, added.sum, weight, y, inverse_rms});
  run<NormTable>("rms_norm", x, [&](auto element, const auto& kernels) {
    return kernels.rms_norm_forward(
        forward_call<decltype(element)>(x, weight, eps, kind, y, inverse_rms, aligned_added), x.numel() / x.size(-1));
  });
  return {y, inverse_rms};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& unaligned_dy,
    const at::Tensor& unaligned,
    const at::Tensor& unaligned_weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    cpu::GradMask wanted,
    const at::Tensor& unaligned_dsum) {
  if (unaligned.numel() == 0) {
    return no_rows(unaligned, unaligned_weight, wanted);
  }
  const at::Tensor dy = aligned_for_kernels(unaligned_dy);
  const at::Tensor x = aligned_for_kernels(unaligned);
  const at::Tensor weight = aligned_for_kernels(unaligned_weight);
  const at::Tensor dsum = aligned_or_none(unaligned_dsum);
  const at::Tensor dx = wanted.x ? at::empty_like(x) : at::Tensor();
  at::Tensor dweight;
  report_pointwise({dy, x, weight, inverse_rms, dsum, dx});
  run<NormTable>("rms_norm_backward", x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const int64_t rows = inverse_rms.numel();
    const WeightGradientBuffers<T> buffers(weight, rows, row_threads<T>(x.size(-1)), wanted.weight);
    dweight = buffers.sum();
    return kernels.rms_norm_backward(
        backward_call<T>(dy, x, weight, inverse_rms, kind, dx, dsum), buffers.call(), rows);
  });
  return {dx, dweight};
}

at::Tensor rotary(const at::Tensor& unaligned, const cpu::CosSin& angles, bool backward) {
  check_devices("apply_rotary", {unaligned, angles.cos, angles.sin});
  const at::Tensor x = aligned_for_kernels(unaligned);
  const cpu::CosSin aligned_angles{
      aligned_for_kernels(angles.cos), aligned_for_kernels(angles.sin), angles.interleaved};
  const at::Tensor y = at::empty_like(x);
  report_pointwise({x, angles.cos, angles.sin, y});
  run<NormTable>("apply_rotary", x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const RotaryCall<T> call{
        .x = elements<T>(x),
        .y = elements<T>(y),
        .angles = kernel_angles<T>(aligned_angles),
        .heads = x.size(2),
        .size = x.size(3),
        .backward = backward};
    return kernels.rotary(call, x.size(0) * x.size(1));
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_forward(
    const at::Tensor& unaligned,
    const at::Tensor& unaligned_weight,
    double eps,
    NormWeight kind,
    const cpu::CosSin& angles,
    bool keep) {
  check_devices("qk_norm_rotary", {unaligned, unaligned_weight, angles.cos, angles.sin});
  const at::Tensor x = aligned_for_kernels(unaligned);
  const at::Tensor weight = aligned_for_kernels(unaligned_weight);
  const cpu::CosSin aligned_angles{
      aligned_for_kernels(angles.cos), aligned_for_kernels(angles.sin), angles.interleaved};
  const at::Tensor y = at::empty_like(x);
  const at::Tensor inverse_rms = rms_buffer(x, keep);
  report_pointwise({x, weight, angles.cos, angles.sin, y, inverse_rms});
  run<NormTable>("qk_norm_rotary", x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const NormRotaryForward<T> call{
        .norm = forward_call<T>(x, weight, eps, kind, y, inverse_rms),
        .angles = kernel_angles<T>(aligned_angles),
        .heads = x.size(2)};
    return kernels.norm_rotary_forward(call, x.size(0) * x.size(1));
  });
  return {y, inverse_rms};
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_backward(
    const at::Tensor& unaligned_dy,
    const at::Tensor& unaligned,
    const at::Tensor& unaligned_weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    const cpu::CosSin& angles,
    cpu::GradMask wanted) {
  if (unaligned.numel() == 0) {
    return no_rows(unaligned, unaligned_weight, wanted);
  }
  const at::Tensor dy = aligned_for_kernels(unaligned_dy);
  const at::Tensor x = aligned_for_kernels(unaligned);
  const at::Tensor weight = aligned_for_kernels(unaligned_weight);
  const cpu::CosSin aligned_angles{
      aligned_for_kernels(angles.cos), aligned_for_kernels(angles.sin), angles.interleaved};
  const at::Tensor dx = wanted.x ? at::empty_like(x) : at::Tensor();
  at::Tensor dweight;
  report_pointwise({dy, x, weight, inverse_rms, angles.cos, angles.sin, dx});
  run<NormTable>("qk_norm_rotary_backward", x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const WeightGradientBuffers<T> buffers(weight, inverse_rms.numel(), head_threads<T>(x.size(3)), wanted.weight);
    dweight = buffers.sum();
    const NormRotaryBackward<T> call{
        .norm = backward_call<T>(dy, x, weight, inverse_rms, kind, dx),
        .angles = kernel_angles<T>(aligned_angles),
        .heads = x.size(2)};
    return kernels.norm_rotary_backward(call, buffers.call(), x.size(0) * x.size(1));
  });
  return {dx, dweight};
}

}  // namespace lehr::ops::cuda
