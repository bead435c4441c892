#include "lehr/ops/token_permutation/token_permutation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstring>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/device.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/token_permutation/kernels.h"

namespace lehr::ops {

namespace {
template <class T>
TokenCopies<T> copies_call(
    const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices) {
  return {
      .sorted = cpu::elements<T>(sorted),
      .weights = cpu::elements<T>(weights),
      .inverse = cpu::elements<int64_t>(inverse),
      .choices = choices,
      .size = sorted.size(1)};
}
}  // namespace

namespace cpu {
namespace {
at::Tensor copy_tokens(const at::Tensor& tokens, const at::Tensor& order) {
  at::Tensor copies = at::empty({order.size(0), tokens.size(1)}, tokens.options());
  report_pointwise({tokens, copies});
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
}  // namespace
}  // namespace cpu

namespace cuda {
namespace {
using cpu::elements;

at::Tensor copy_tokens(const at::Tensor& tokens, const at::Tensor& inverse) {
  check_devices("permute_tokens", {tokens, inverse});
  const int64_t rows = inverse.size(0);
  require(
      tokens.dim() == 2 && tokens.size(0) > 0 && rows % tokens.size(0) == 0,
      "permute_tokens: expected tokens (N, H) for a permutation of {} copies, found {}",
      rows,
      shape_of(tokens));
  const at::Tensor copies = at::empty({rows, tokens.size(1)}, tokens.options());
  report_moved({tokens, copies});
  run<TokenCopyLaunches>("permute_tokens", tokens, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    return kernels.copy(
        elements<T>(tokens),
        elements<int64_t>(inverse),
        elements<T>(copies),
        tokens.size(0),
        rows / tokens.size(0),
        tokens.size(1));
  });
  return copies;
}
}  // namespace
}  // namespace cuda

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor copy_tokens(const at::Tensor& tokens, const at::Tensor& order, const at::Tensor& inverse) {
  return cuda::supports(tokens) ? cuda::copy_tokens(tokens, inverse) : cpu::copy_tokens(tokens, order);
}

// Returns the sum of each token's rows of `sorted`, multiplied by weights (N, k) if defined, in the order of the
// token's choices, for the `inverse` of a TokenPermutation with k choices per token.
at::Tensor sum_copies(const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse, int64_t choices) {
  const int64_t tokens = inverse.size(0) / choices;
  const at::Tensor out = at::empty({tokens, sorted.size(1)}, sorted.options());
  if (cuda::supports(sorted)) {
    report_moved({sorted, out});
    cuda::check_devices("combine_tokens", {sorted, weights, inverse});
    require(
        sorted.dim() == 2 && sorted.size(0) == inverse.size(0) && inverse.size(0) % choices == 0 &&
            (!weights.defined() || weights.numel() == inverse.size(0)),
        "combine_tokens: expected results of {} copies, found {}",
        inverse.size(0),
        shape_of(sorted));
    cuda::run<cuda::TokenCopyLaunches>("combine_tokens", sorted, [&](auto element, const auto& kernels) {
      using T = decltype(element);
      return kernels.sum(copies_call<T>(sorted, weights, inverse, choices), cpu::elements<T>(out), tokens);
    });
    return out;
  }
  report_pointwise({sorted, out});
  cpu::run<TokenCopyKernels>(sorted, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto call = copies_call<T>(sorted, weights, inverse, choices);
    cpu::run_kernel(sorted, 0, tokens, cpu::grain_for(choices * sorted.size(1)), [&](int64_t first, int64_t last) {
      kernels.sum(call, cpu::elements<T>(out), first, last);
    });
  });
  return out;
}

// Returns the gradients of sum_copies for sorted and weights.
std::tuple<at::Tensor, at::Tensor> sum_copies_backward(
    const at::Tensor& dout,
    const at::Tensor& sorted,
    const at::Tensor& weights,
    const at::Tensor& inverse,
    cpu::GradMask wanted) {
  const int64_t tokens = weights.size(0), choices = weights.size(1);
  const at::Tensor dsorted = wanted.x ? at::empty_like(sorted) : at::Tensor();
  const at::Tensor dweights = wanted.weight ? at::empty_like(weights) : at::Tensor();
  if (cuda::supports(sorted)) {
    report_moved({sorted, dout, sorted});
    cuda::run<cuda::TokenCopyLaunches>("combine_tokens_backward", sorted, [&](auto element, const auto& kernels) {
      using T = decltype(element);
      return kernels.sum_backward(
          copies_call<T>(sorted, weights, inverse, choices),
          cpu::elements<T>(dout),
          cpu::elements<T>(dsorted),
          cpu::elements<T>(dweights),
          tokens);
    });
    return {dsorted, dweights};
  }
  report_pointwise({dout, wanted.weight ? sorted : at::Tensor(), dsorted});
  cpu::run<TokenCopyKernels>(sorted, [&](auto element, const auto& kernels) {
    using T = decltype(element);
    const auto call = copies_call<T>(sorted, weights, inverse, choices);
    cpu::run_kernel(sorted, 0, tokens, cpu::grain_for(choices * sorted.size(1)), [&](int64_t first, int64_t last) {
      kernels.sum_backward(
          call, cpu::elements<T>(dout), cpu::elements<T>(dsorted), cpu::elements<T>(dweights), first, last);
    });
  });
  return {dsorted, dweights};
}

// Returns whether there are fused kernels for these rows.
bool is_fused(const at::Tensor& rows) {
  return supports(rows) && rows.numel() > 0;
}

at::Tensor copies_of(const at::Tensor& tokens, const at::Tensor& order, const at::Tensor& inverse) {
  if (is_fused(tokens)) {
    return copy_tokens(tokens, order, inverse);
  }
  return tokens.index_select(0, order.div(tokens.size(0) > 0 ? order.size(0) / tokens.size(0) : 1, "floor"));
}

// Returns whether there are more copies than tokens. Only then does recomputing the copies save memory.
bool multiplies(const at::Tensor& tokens, const at::Tensor& order) {
  return order.size(0) > tokens.size(0);
}

struct Permute : AutogradFunction<Permute> {
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& tokens, const at::Tensor& order, const at::Tensor& inverse) {
    ctx->save_for_backward(
        {inverse, order, multiplies(tokens, order) ? save_or_recompute(ctx, "tokens", tokens) : at::Tensor()});
    ctx->saved_data["count"] = tokens.size(0);
    return copies_of(tokens, order, inverse);
  }

  // Recomputes the copies in backward.
  static at::Tensor recompute(AutogradContext* ctx) {
    const OperatorScope scope(OperatorKind::routing, "lehr::permute_tokens_again");
    const auto saved = ctx->get_saved_variables();
    return copies_of(saved_or_recomputed(ctx, "tokens", saved[2]), saved[1], saved[0]);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::routing, "lehr::permute_tokens_backward");
    refuse_double_backward("permute_tokens");
    const int64_t tokens = ctx->saved_data["count"].toInt();
    const at::Tensor inverse = ctx->get_saved_variables().front();
    const int64_t choices = tokens > 0 ? inverse.size(0) / tokens : 1;
    if (is_fused(grads[0])) {
      return {sum_copies(grads[0].contiguous(), at::Tensor(), inverse, choices), {}, {}};
    }
    return {grads[0].index_select(0, inverse).view({tokens, choices, grads[0].size(-1)}).sum(1), {}, {}};
  }
};

struct SumCopies : AutogradFunction<SumCopies> {
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& sorted, const at::Tensor& weights, const at::Tensor& inverse) {
    ctx->save_for_backward({save_or_recompute(ctx, "sorted", sorted), weights, inverse});
    return sum_copies(sorted, weights, inverse, weights.size(1));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::routing, "lehr::combine_tokens_backward");
    refuse_double_backward("combine_tokens");
    const auto saved = ctx->get_saved_variables();
    const cpu::GradMask wanted{.x = ctx->needs_input_grad(0), .weight = ctx->needs_input_grad(1)};
    auto [dsorted, dweights] = sum_copies_backward(
        grads[0].contiguous(), saved_or_recomputed(ctx, "sorted", saved[0]), saved[1], saved[2], wanted);
    return {dsorted, dweights, {}};
  }
};

// A permutation of rows. Its gradient is the inverse permutation, by index_select instead of index_add.
struct Reorder : AutogradFunction<Reorder> {
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& sorted, const at::Tensor& order, const at::Tensor& inverse) {
    ctx->save_for_backward({order});
    return sorted.index_select(0, inverse);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::routing, "lehr::unpermute_rows_backward");
    refuse_double_backward("unpermute_rows");
    return {grads[0].index_select(0, ctx->get_saved_variables().front()), at::Tensor(), at::Tensor()};
  }
};

// The permutation under an operator watch: its values depend on data and on the rank, so only sizes are stated.
TokenPermutation sizes_only(OperatorWatch& watch, const at::Tensor& selected, int64_t num_experts) {
  const auto made = [&](int64_t size, at::ScalarType dtype) {
    return watch.state({.name = "sort_by_expert", .inputs = {{"selected", selected}}, .shape = {size}, .dtype = dtype});
  };
  return {
      .order = made(selected.numel(), at::kLong),
      .inverse = made(selected.numel(), at::kLong),
      .counts = made(num_experts, at::kLong),
      .ends = made(num_experts, at::kInt)};
}
}  // namespace

TokenPermutation sort_by_expert(const at::Tensor& selected_experts, int64_t num_experts) {
  if (OperatorWatch* watch = operator_watch()) {
    return sizes_only(*watch, selected_experts, num_experts);
  }
  const OperatorScope scope(OperatorKind::routing, "lehr::sort_by_expert");
  const at::Tensor flat = selected_experts.flatten();
  const at::Tensor order = std::get<1>(flat.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false));
  const at::Tensor inverse = at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
  const at::Tensor counts = at::zeros({num_experts}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
  return {.order = order, .inverse = inverse, .counts = counts, .ends = counts.cumsum(0).to(at::kInt)};
}

at::Tensor permute_tokens(const at::Tensor& tokens, const TokenPermutation& permutation) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(
        {.name = "permute_tokens",
         .inputs = {{"tokens", tokens}},
         .shape = {permutation.order.size(0), tokens.size(1)},
         .dtype = tokens.scalar_type()});
  }
  const OperatorScope scope(OperatorKind::routing, "lehr::permute_tokens");
  const int64_t count = permutation.order.size(0);
  require(
      tokens.dim() == 2 && permutation.inverse.size(0) == count &&
          (tokens.size(0) == 0 ? count == 0 : count % tokens.size(0) == 0),
      "permute_tokens: expected tokens (N, H) of a permutation of N * k copies, found {} and {} copies",
      shape_of(tokens),
      count);
  const at::Tensor copies = Permute::apply(tokens.contiguous(), permutation.order, permutation.inverse);
  return will_differentiate(tokens) && multiplies(tokens, permutation.order) ? recomputable(copies, Permute::recompute)
                                                                             : copies;
}

at::Tensor unpermute_rows(const at::Tensor& sorted, const TokenPermutation& permutation) {
  const OperatorScope scope(OperatorKind::routing, "lehr::unpermute_rows");
  return Reorder::apply(sorted, permutation.order, permutation.inverse);
}

at::Tensor combine_tokens(const at::Tensor& sorted, const at::Tensor& weights, const TokenPermutation& permutation) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(
        {.name = "combine_tokens",
         .inputs = {{"results", sorted}, {"weights", weights}},
         .shape = {weights.size(0), sorted.size(1)},
         .dtype = sorted.scalar_type()});
  }
  const OperatorScope scope(OperatorKind::routing, "lehr::combine_tokens");
  require(
      sorted.dim() == 2 && weights.dim() == 2 && sorted.size(0) == weights.numel() &&
          permutation.inverse.size(0) == weights.numel(),
      "combine_tokens: expected results (N*k, H) and weights (N, k) of a permutation of N * k copies, found {}, {} and "
      "{} copies",
      shape_of(sorted),
      shape_of(weights),
      permutation.inverse.size(0));
  if (is_fused(sorted) && weights.scalar_type() == sorted.scalar_type()) {
    return SumCopies::apply(sorted.contiguous(), weights.contiguous(), permutation.inverse);
  }
  const at::Tensor copies = unpermute_rows(sorted, permutation);  // (N*k, H)
  return (copies.view({weights.size(0), weights.size(1), sorted.size(-1)}) * weights.unsqueeze(-1)).sum(1);
}

}  // namespace lehr::ops
