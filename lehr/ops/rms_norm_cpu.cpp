// RMSNorm on the CPU, alone and followed by the rotary embedding.
//
// The gradient of weight is summed in float32 within blocks of rows, and in float64 over blocks. The blocks depend on
// the shape only, so the result does not depend on the number of threads.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "lehr/base/operation_meter.h"
#include "lehr/ops/norm_calls.h"

namespace lehr::ops {

at::Tensor rms_buffer(const at::Tensor& x, bool keep) {
  if (!keep) {
    return {};
  }
  return at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(cpu::wide_type(x.scalar_type())));
}

namespace cpu {

namespace {
constexpr int64_t kRowsABlock = 64;

// Sums the rows of `blocks` (blocks, C) in float64.
template <class T>
at::Tensor sum_of_blocks(const at::Tensor& blocks, at::ScalarType type) {
  const int64_t count = blocks.size(0);
  const int64_t size = blocks.size(1);
  at::Tensor sums = at::empty({size}, blocks.options().dtype(at::kDouble));
  const Wide<T>* from = elements<Wide<T>>(blocks);
  double* to = elements<double>(sums);
  run_kernel(blocks, 0, size, grain_for(count), [&](int64_t first, int64_t last) {
    std::fill(to + first, to + last, 0.0);
    for (int64_t block = 0; block < count; ++block) {
      for (int64_t i = first; i < last; ++i) {
        to[i] += static_cast<double>(from[block * size + i]);
      }
    }
  });
  return sums.to(type);
}

// Calls backward(dweight, first, last) for blocks of `items_a_block` of `items`, each with its own row of partial sums.
// Returns the gradient of weight, undefined unless wanted.
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
    partial = at::zeros({blocks, size}, weight.options().dtype(wide_type(weight.scalar_type())));
  }
  Wide<T>* sums = elements<Wide<T>>(partial);
  run_kernel(weight, 0, blocks, grain_for(items_a_block * elements_an_item), [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      backward(
          sums ? sums + block * size : nullptr, block * items_a_block, std::min(items, (block + 1) * items_a_block));
    }
  });
  return want_weight ? sum_of_blocks<T>(partial, weight.scalar_type()) : at::Tensor();
}

}  // namespace

bool supports(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return (tensor.is_cpu() || runs_on_meta(tensor)) &&
         (type == at::kFloat || type == at::kDouble || type == at::kBFloat16);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, bool keep, const Added& added) {
  at::Tensor y = at::empty_like(x);
  at::Tensor inverse_rms = rms_buffer(x, keep);
  report_pointwise({x, added.branch, added.sum, weight, y, inverse_rms});
  const int64_t size = x.size(-1);
  if (x.numel() == 0) {
    return {y, inverse_rms};
  }
  with_element_type(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const RmsNormForward<T> call = forward_call<T>(x, weight, eps, kind, y, inverse_rms, added);
    run_kernel(x, 0, x.numel() / size, grain_for(size), [&](int64_t first, int64_t last) {
      kernel.rms_norm_forward(call, first, last);
    });
  });
  return {y, inverse_rms};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    GradMask wanted,
    const at::Tensor& dsum) {
  at::Tensor dx = wanted.x ? at::empty_like(x) : at::Tensor();
  at::Tensor dweight;
  report_pointwise({dy, x, weight, inverse_rms, dsum, dx});
  const int64_t size = x.size(-1);
  const int64_t rows = inverse_rms.numel();
  with_element_type(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const RmsNormBackward<T> call = backward_call<T>(dy, x, weight, inverse_rms, kind, dx, dsum);
    dweight =
        over_blocks<T>(weight, rows, kRowsABlock, size, wanted.weight, [&](Wide<T>* sums, int64_t first, int64_t last) {
          kernel.rms_norm_backward(call, sums, first, last);
        });
  });
  return {dx, dweight};
}

CosSin angles_for(const at::Tensor& cos, const at::Tensor& sin, at::ScalarType type, RotaryStyle style) {
  const auto flat = [&](const at::Tensor& t) {
    return t.detach().to(wide_type(type)).reshape({-1, t.size(-1)}).contiguous();
  };
  return {flat(cos), flat(sin), style == RotaryStyle::interleaved};
}

at::Tensor rotary(const at::Tensor& x, const CosSin& angles, bool backward) {
  at::Tensor y = at::empty_like(x);
  report_pointwise({x, angles.cos, angles.sin, y});
  if (x.numel() == 0) {
    return y;
  }
  with_element_type(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const RotaryCall<T> call{
        .x = elements<T>(x),
        .y = elements<T>(y),
        .angles = kernel_angles<T>(angles),
        .heads = x.size(2),
        .size = x.size(3),
        .backward = backward};
    run_kernel(x, 0, x.size(0) * x.size(1), grain_for(x.size(2) * x.size(3)), [&](int64_t first, int64_t last) {
      kernel.rotary(call, first, last);
    });
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_forward(
    const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind, const CosSin& angles, bool keep) {
  at::Tensor y = at::empty_like(x);
  at::Tensor inverse_rms = rms_buffer(x, keep);
  report_pointwise({x, weight, angles.cos, angles.sin, y, inverse_rms});
  if (x.numel() == 0) {
    return {y, inverse_rms};
  }
  with_element_type(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const NormRotaryForward<T> call{
        .norm = forward_call<T>(x, weight, eps, kind, y, inverse_rms),
        .angles = kernel_angles<T>(angles),
        .heads = x.size(2)};
    run_kernel(x, 0, x.size(0) * x.size(1), grain_for(x.size(2) * x.size(3)), [&](int64_t first, int64_t last) {
      kernel.norm_rotary_forward(call, first, last);
    });
  });
  return {y, inverse_rms};
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_backward(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& inverse_rms,
    NormWeight kind,
    const CosSin& angles,
    GradMask wanted) {
  at::Tensor dx = wanted.x ? at::empty_like(x) : at::Tensor();
  at::Tensor dweight;
  report_pointwise({dy, x, weight, inverse_rms, angles.cos, angles.sin, dx});
  const int64_t heads = x.size(2);
  const int64_t tokens = x.numel() == 0 ? 0 : x.size(0) * x.size(1);
  const int64_t tokens_per_block = std::max<int64_t>(1, kRowsABlock / std::max<int64_t>(1, heads));
  with_element_type(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const NormRotaryBackward<T> call{
        .norm = backward_call<T>(dy, x, weight, inverse_rms, kind, dx),
        .angles = kernel_angles<T>(angles),
        .heads = heads};
    dweight = over_blocks<T>(
        weight,
        tokens,
        tokens_per_block,
        heads * x.size(3),
        wanted.weight,
        [&](Wide<T>* sums, int64_t first, int64_t last) { kernel.norm_rotary_backward(call, sums, first, last); });
  });
  return {dx, dweight};
}

}  // namespace cpu
}  // namespace lehr::ops
