// Common parts of norms of rows (rms_norm.cpp) and of norms of heads with their rotation (rotary.cpp): the arguments of
// their kernels, and the gradient of weight.
//
// On the CPU the gradient of weight is summed in float32 within blocks of rows, and in float64 over blocks. The blocks
// depend on the shape only, so the result does not depend on the number of threads.
#pragma once

#include "lehr/ops/device.h"
#include "lehr/ops/rms_norm/kernels.h"

namespace lehr::ops {

/// Fused residual addition of a norm: `branch` is added to x before the norm, and the sum is written to `sum`. Both
/// have x's shape, or are undefined for no addition.
struct Added {
  at::Tensor branch = {};
  at::Tensor sum = {};
};

/// Returns the arguments of a forward kernel for these tensors; undefined ones are null.
template <class T>
RmsNormForward<T> forward_call(
    const at::Tensor& x,
    const at::Tensor& weight,
    double eps,
    bool zero_centered,
    const at::Tensor& y,
    const at::Tensor& inverse_rms,
    const Added& added = {}) {
  return {
      .x = cpu::elements<T>(x),
      .branch = cpu::elements<T>(added.branch),
      .sum = cpu::elements<T>(added.sum),
      .weight = cpu::elements<T>(weight),
      .y = cpu::elements<T>(y),
      .inverse_rms = cpu::elements<Wide<T>>(inverse_rms),
      .size = x.size(-1),
      .eps = eps,
      .zero_centered = zero_centered};
}

/// Returns the arguments of a backward kernel for these tensors; undefined ones are null.
template <class T>
RmsNormBackward<T> backward_call(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    bool zero_centered,
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
      .zero_centered = zero_centered};
}

/// Returns an empty buffer for the inverse RMS of each row of x, which backward needs; undefined unless `keep`.
inline at::Tensor rms_buffer(const at::Tensor& x, bool keep) {
  if (!keep) {
    return {};
  }
  return at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(cpu::wide_type(x.scalar_type())));
}

/// Rows whose gradient of weight is summed in float32, on the CPU.
constexpr int64_t kRowsABlock = 64;

/// Sums the rows of `blocks` (blocks, C) in float64.
template <class T>
at::Tensor sum_of_blocks(const at::Tensor& blocks, at::ScalarType type) {
  const int64_t count = blocks.size(0);
  const int64_t size = blocks.size(1);
  at::Tensor sums = at::empty({size}, blocks.options().dtype(at::kDouble));
  const Wide<T>* from = cpu::elements<Wide<T>>(blocks);
  double* to = cpu::elements<double>(sums);
  cpu::run_kernel(blocks, 0, size, cpu::grain_for(count), [&](int64_t first, int64_t last) {
    std::fill(to + first, to + last, 0.0);
    for (int64_t block = 0; block < count; ++block) {
      for (int64_t i = first; i < last; ++i) {
        to[i] += static_cast<double>(from[block * size + i]);
      }
    }
  });
  return sums.to(type);
}

/// Calls backward(dweight, first, last) for blocks of `items_a_block` of `items`, each with its own row of partial
/// sums. Returns the gradient of weight, undefined unless wanted.
template <class T, class Backward>
at::Tensor over_blocks(
    const at::Tensor& weight,
    int64_t items,
    int64_t items_a_block,
    int64_t elements_an_item,
    bool want_weight,
    const Backward& backward) {
  const int64_t blocks = (items + items_a_block - 1) / items_a_block;
  const int64_t size = weight.size(0);
  at::Tensor partial;
  if (want_weight) {
    partial = at::zeros({blocks, size}, weight.options().dtype(cpu::wide_type(weight.scalar_type())));
  }
  Wide<T>* sums = cpu::elements<Wide<T>>(partial);
  cpu::run_kernel(
      weight, 0, blocks, cpu::grain_for(items_a_block * elements_an_item), [&](int64_t first, int64_t last) {
        for (int64_t block = first; block < last; ++block) {
          backward(
              sums ? sums + block * size : nullptr,
              block * items_a_block,
              std::min(items, (block + 1) * items_a_block));
        }
      });
  return want_weight ? sum_of_blocks<T>(partial, weight.scalar_type()) : at::Tensor();
}

namespace cuda {
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
  WeightGradient<T> call() const { return {cpu::elements<float>(parts_), count_, cpu::elements<T>(sum_)}; }
  const at::Tensor& sum() const { return sum_; }

 private:
  int64_t count_;
  at::Tensor parts_;
  at::Tensor sum_;
};

}  // namespace cuda

/// Returns the tensor as its kernels read it: on a GPU aligned to 16 bytes.
inline at::Tensor operand(const at::Tensor& tensor) {
  return tensor.defined() && cuda::supports(tensor) ? cuda::aligned_for_kernels(tensor) : tensor;
}

/// Returns the gradients of x, which has no elements, and of its weight.
inline std::tuple<at::Tensor, at::Tensor> no_rows(const at::Tensor& x, const at::Tensor& weight, cpu::GradMask wanted) {
  return {wanted.x ? at::empty_like(x) : at::Tensor(), wanted.weight ? at::zeros_like(weight) : at::Tensor()};
}

}  // namespace lehr::ops
