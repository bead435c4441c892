// Conversion of tensors to the argument structs of norm and rotary kernels, on the CPU (kernels/table.h) and on a GPU
// (cuda/table.h).
#pragma once

#include "lehr/ops/cpu.h"

namespace lehr::ops {

template <class T>
RotaryAngles<T> kernel_angles(const cpu::CosSin& angles) {
  return {
      .cos = cpu::elements<Wide<T>>(angles.cos),
      .sin = cpu::elements<Wide<T>>(angles.sin),
      .angle_rows = angles.cos.size(0),
      .rotated = angles.cos.size(1),
      .interleaved = angles.interleaved};
}

template <class T>
RmsNormForward<T> forward_call(
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    NormWeight kind,
    const at::Tensor& y,
    const at::Tensor& inverse_rms,
    const cpu::Added& added = {}) {
  return {
      .x = cpu::elements<T>(x),
      .branch = cpu::elements<T>(added.branch),
      .sum = cpu::elements<T>(added.sum),
      .weight = cpu::elements<T>(weight),
      .y = cpu::elements<T>(y),
      .inverse_rms = cpu::elements<Wide<T>>(inverse_rms),
      .size = x.size(-1),
      .eps = eps,
      .zero_centered = kind == NormWeight::zero_centered};
}

template <class T>
RmsNormBackward<T> backward_call(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    const at::Tensor& dx,
    const at::Tensor& dsum = {}) {
  return {
      .dy = cpu::elements<T>(dy),
      .x = cpu::elements<T>(x),
      .weight = cpu::elements<T>(weight),
      .inverse_rms = cpu::elements<Wide<T>>(inverse_rms),
      .dsum = cpu::elements<T>(dsum),
      .dx = cpu::elements<T>(dx),
      .size = x.size(-1),
      .zero_centered = kind == NormWeight::zero_centered};
}

/// Returns an empty buffer for the inverse RMS of each row of x, which backward needs; undefined unless `keep`.
at::Tensor rms_buffer(const at::Tensor& x, bool keep);

}  // namespace lehr::ops
