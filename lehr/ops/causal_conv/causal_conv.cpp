// The causal convolution: checks, the autograd function, and the choice of CPU, GPU or definition.
#include "lehr/ops/causal_conv/causal_conv.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/causal_conv/kernels.h"
#include "lehr/ops/device.h"
#include "lehr/ops/recompute.h"

namespace lehr::ops {

namespace {
using cpu::elements;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The gradients to compute.
struct ConvGradients {
  bool x, weight, bias;
};

// (W, D) in the wide type, so that a tap is a row.
at::Tensor rows_of(const at::Tensor& weight) {
  return weight.detach().flatten(0, 1).t().to(cpu::wide_type(weight.scalar_type())).contiguous();
}

at::Tensor wide_bias(const at::Tensor& bias) {
  return bias.defined() ? bias.detach().to(cpu::wide_type(bias.scalar_type())).contiguous() : bias;
}

template <class T>
ConvCall<T> call_of(
    const at::Tensor& x,
    const at::Tensor& rows,
    const at::Tensor& wide_bias,
    const at::Tensor& earlier,
    const at::Tensor& before) {
  return {
      .x = elements<T>(x),
      .before = elements<T>(before),
      .weight = elements<Wide<T>>(rows),
      .bias = elements<Wide<T>>(wide_bias),
      .earlier = elements<int32_t>(earlier),
      .tokens = x.size(0) * x.size(1),
      .row_tokens = x.size(1),
      .channels = rows.size(1),
      .width = rows.size(0)};
}

template <class T>
cuda::ConvInput<T> input_of(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& cumulative_lengths,
    const at::Tensor& before) {
  return {
      .x = elements<T>(x),
      .before = elements<T>(before),
      .weight = elements<T>(weight),
      .bias = elements<T>(bias),
      .cumulative_lengths = elements<int32_t>(cumulative_lengths),
      .borders = cumulative_lengths.defined() ? cumulative_lengths.numel() : 0,
      .rows = x.size(0),
      .row_tokens = x.size(1),
      .channels = weight.size(0),
      .width = weight.size(2)};
}

// `sequences` are the taps of each token on the CPU (earlier_taps), and the cumulative lengths on a GPU.
at::Tensor forward_of(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& sequences,
    const at::Tensor& before) {
  const at::Tensor y = at::empty_like(x);
  report_pointwise({x, y});
  if (cuda::supports(x)) {
    cuda::check_devices("causal_conv", {x, weight, bias, sequences, before});
    cuda::run<ConvLaunches>("causal_conv", x, [&](auto element, const auto& kernels) {
      using T = decltype(element);
      return kernels.forward(input_of<T>(x, weight, bias, sequences, before), elements<T>(y));
    });
    return y;
  }
  const at::Tensor rows = rows_of(weight), shift = wide_bias(bias);
  cpu::run<ConvKernels>(x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto call = call_of<T>(x, rows, shift, sequences, before);
    cpu::run_kernel(x, 0, call.tokens, cpu::grain_for(call.channels), [&](int64_t first, int64_t last) {
      kernels.forward(call, elements<T>(y), first, last);
    });
  });
  return y;
}

// Returns the same as backward_of.
variable_list backward_on_gpu(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& cumulative_lengths,
    const at::Tensor& before,
    ConvGradients want) {
  const at::Tensor dx = want.x ? at::empty_like(x) : at::Tensor();
  const at::Tensor dbefore = !before.defined() ? before
                             : x.numel() > 0   ? at::empty_like(before)
                                               : at::zeros_like(before);
  const int64_t biases = bias.defined() ? bias.numel() : 0, size = (weight.numel() + biases + 3) / 4 * 4;
  at::Tensor parts, sums;  // the gradients of the weight and then of the bias
  report_pointwise({dy, x, dx});
  cuda::run<ConvLaunches>("causal_conv_backward", x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto input = input_of<T>(x, weight, bias, cumulative_lengths, before);
    const int64_t blocks = input.rows * input.token_blocks();
    if (want.weight || want.bias) {
      parts = at::empty({blocks, size}, x.options().dtype(at::kFloat));
      sums = blocks > 0 ? at::empty({size}, x.options()) : at::zeros({size}, x.options());
    }
    return kernels.backward(
        input,
        elements<T>(dy),
        elements<T>(dx),
        elements<T>(dbefore),
        {elements<float>(parts), blocks, elements<T>(sums)},
        size);
  });
  return {
      dx,
      want.weight ? sums.narrow(0, 0, weight.numel()).view(weight.sizes()) : at::Tensor(),
      want.bias ? sums.narrow(0, weight.numel(), biases).clone() : at::Tensor(),
      dbefore};
}

// Returns the gradients of x, the weight, the bias and the tokens before the rows; undefined where they are not wanted,
// or where there are no such tokens.
variable_list backward_of(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& sequences,
    const at::Tensor& before,
    ConvGradients want) {
  if (cuda::supports(x)) {
    return backward_on_gpu(dy, x, weight, bias, sequences, before, want);
  }
  const at::Tensor dx = want.x ? at::empty_like(x) : at::Tensor();
  const at::Tensor rows = rows_of(weight), shift = wide_bias(bias);
  const at::Tensor dshift = want.bias ? at::empty_like(shift) : at::Tensor();
  const at::Tensor drows = want.weight ? at::empty_like(rows) : at::Tensor();
  const at::Tensor dbefore =  // in the wide type: tokens add to it
      before.defined() ? at::zeros(before.sizes(), rows.options()) : at::Tensor();
  report_pointwise({dy, x, dx});
  cpu::run<ConvKernels>(x, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto call = call_of<T>(x, rows, shift, sequences, before);
    const int64_t blocks = (call.channels + kConvBlock - 1) / kConvBlock;
    cpu::run_kernel(x, 0, blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        const int64_t begin = block * kConvBlock;
        kernels.backward(
            call,
            elements<T>(dy),
            elements<T>(dx),
            elements<Wide<T>>(dbefore),
            elements<Wide<T>>(drows),
            elements<Wide<T>>(dshift),
            begin,
            std::min(begin + kConvBlock, call.channels));
      }
    });
  });
  return {
      dx,
      want.weight ? drows.t().to(weight.scalar_type()).contiguous().view(weight.sizes()) : at::Tensor(),
      want.bias ? dshift.to(bias.scalar_type()) : at::Tensor(),
      before.defined() ? dbefore.to(x.scalar_type()) : at::Tensor()};
}

struct CausalConvFunction : AutogradFunction<CausalConvFunction> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      const std::optional<at::Tensor>& bias,
      const std::optional<at::Tensor>& sequences,
      const std::optional<at::Tensor>& before) {
    const at::Tensor none;
    ctx->save_for_backward({x, weight, bias.value_or(none), sequences.value_or(none), before.value_or(none)});
    return forward_of(x, weight, bias.value_or(none), sequences.value_or(none), before.value_or(none));
  }

  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::attention, "lehr::causal_conv_again");
    const auto saved = ctx->get_saved_variables();
    return forward_of(saved[0], saved[1], saved[2], saved[3], saved[4]);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::attention, "lehr::causal_conv_backward");
    refuse_double_backward("causal_conv");
    const auto saved = ctx->get_saved_variables();
    // Tensors that were not given are not counted: the third one is the bias, if there is one.
    const ConvGradients want{
        .x = ctx->needs_input_grad(0),
        .weight = ctx->needs_input_grad(1),
        .bias = saved[2].defined() && ctx->needs_input_grad(2)};
    const auto found = backward_of(grads[0].contiguous(), saved[0], saved[1], saved[2], saved[3], saved[4], want);
    return {found[0], found[1], found[2], at::Tensor(), found[3]};
  }
};

void check(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& cumulative_lengths,
    const at::Tensor& before,
    const at::Tensor& bias) {
  int64_t channels = 1;
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    channels *= x.size(dim);
  }
  require(
      x.dim() >= 3 && weight.dim() == 3 && weight.size(1) == 1 && x.is_floating_point() &&
          x.scalar_type() == weight.scalar_type() && channels == weight.size(0),
      "causal_conv: expected x (B, T, ...) with D channels and a weight (D, 1, W) of its type, found {} {} and {} {}",
      c10::toString(x.scalar_type()),
      shape_of(x),
      c10::toString(weight.scalar_type()),
      shape_of(weight));
  require(
      weight.size(2) >= 1 && weight.size(2) <= kMostTaps,
      "causal_conv: expected a width of 1 to {}, found {}",
      kMostTaps,
      weight.size(2));
  require(
      !cumulative_lengths.defined() ||
          (cumulative_lengths.device() == x.device() && cumulative_lengths.scalar_type() == at::kInt),
      "causal_conv: cumulative_lengths: expected int32 on the device of x, found another tensor");
  auto tail = x.sizes().vec();
  tail[1] = weight.size(2) - 1;
  require(
      !before.defined() || (before.sizes() == tail && before.scalar_type() == x.scalar_type()),
      "causal_conv: before: expected {} {}, found {}",
      c10::toString(x.scalar_type()),
      fmt::join(tail, "x"),
      before.defined() ? shape_of(before) : "");
  require(
      !bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0) && bias.scalar_type() == x.scalar_type()),
      "causal_conv: bias: expected {} {}, found {}",
      c10::toString(x.scalar_type()),
      weight.size(0),
      bias.defined() ? shape_of(bias) : "");
}

// Returns the number of tokens that each token sees before itself in its sequence, at most width - 1: (B, T) int32. The
// first sequence of a row continues the `before` tokens before the row.
at::Tensor earlier_taps(
    const at::Tensor& cumulative_lengths, int64_t rows, int64_t tokens, int64_t width, int64_t before) {
  at::Tensor earlier = at::empty({rows, tokens}, at::kInt);
  auto* const taps = earlier.data_ptr<int32_t>();
  const auto fill = [&](int64_t begin, int64_t end) {
    const int64_t more = begin % tokens == 0 ? before : 0;
    for (int64_t token = begin; token < end; ++token) {
      taps[token] = static_cast<int32_t>(std::min(token - begin + more, width - 1));
    }
  };
  if (!cumulative_lengths.defined()) {
    for (int64_t row = 0; row < rows; ++row) {
      fill(row * tokens, (row + 1) * tokens);
    }
    return earlier;
  }
  const auto* const border = cumulative_lengths.const_data_ptr<int32_t>();
  for (int64_t i = 0; i + 1 < cumulative_lengths.numel(); ++i) {
    fill(border[i], border[i + 1]);
  }
  return earlier;
}
}  // namespace

at::Tensor causal_conv(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& cumulative_lengths,
    const at::Tensor& before,
    const at::Tensor& bias) {
  const OperatorScope scope(OperatorKind::attention, "lehr::causal_conv");
  check(x, weight, cumulative_lengths, before, bias);
  if (!supports(x)) {
    return reference::causal_conv(x, weight, cumulative_lengths, before, bias);
  }
  const int64_t width = weight.size(2), known = before.defined() ? width - 1 : 0;
  at::Tensor sequences = cumulative_lengths;
  if (!cuda::supports(x)) {
    sequences = x.is_meta() ? at::empty({x.size(0), x.size(1)}, x.options().dtype(at::kInt))
                            : earlier_taps(cumulative_lengths, x.size(0), x.size(1), width, known);
  }
  const at::Tensor tail = known > 0 ? before.contiguous() : at::Tensor();
  const at::Tensor shift = bias.defined() ? bias.contiguous() : bias;
  if (will_differentiate(x, weight) || (tail.defined() && will_differentiate(tail)) ||
      (bias.defined() && will_differentiate(bias))) {
    const auto given = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; };
    return recomputable(
        CausalConvFunction::apply(x.contiguous(), weight.contiguous(), given(shift), given(sequences), given(tail)),
        CausalConvFunction::recompute);
  }
  return forward_of(x.contiguous(), weight.contiguous(), shift, sequences, tail);
}

}  // namespace lehr::ops
