// A stand-in for ATen's memory-efficient attention on the CPU, as flash_on_host.h is one for FlashAttention. It checks
// its arguments as the real one (transformers/cuda/attention.cu and mem_eff_attention/ of PyTorch 2.11), except their
// dtype, and like the real one leaves everything outside of the sequences as it was in memory: here NaN. At most one
// source of a program may include this file.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <limits>

namespace lehr::ops::test {

struct EfficientCalls {
  int forward = 0;
  int backward = 0;
};
inline EfficientCalls efficient_calls;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kUnwritten = std::numeric_limits<double>::quiet_NaN();

/// The checked arguments of a call.
struct EfficientOnHost {
  static constexpr int64_t kCausalFromTopLeft = 1;
  static constexpr int64_t kAlignment = 32;  // of the log-sum-exps

  at::Tensor border;  // cumulative lengths of the sequences
  double scale;
  int64_t window;  // 0: none
  int64_t padded;  // length of a sequence's log-sum-exps

  EfficientOnHost(
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const std::optional<at::Tensor>& bias,
      const std::optional<at::Tensor>& cum_q,
      const std::optional<at::Tensor>& cum_k,
      int64_t max_q,
      int64_t max_k,
      double dropout_p,
      int64_t custom_mask_type,
      std::optional<double> given_scale,
      std::optional<int64_t> given_window)
      : border(cum_q.value()),
        scale(given_scale.value()),
        window(given_window.value_or(0)),
        padded((max_q + kAlignment - 1) / kAlignment * kAlignment) {
    TORCH_CHECK(!bias && dropout_p == 0, "no bias with lengths, no dropout");
    TORCH_CHECK(custom_mask_type == kCausalFromTopLeft, "a window needs a causal mask");
    TORCH_CHECK(window >= 0 && window <= std::numeric_limits<int32_t>::max(), "window");
    for (const at::Tensor& x : {q, k, v}) {
      TORCH_CHECK(x.dim() == 4 && x.size(0) == 1, "lengths only with a batch of one");
      TORCH_CHECK(x.size(1) == q.size(1) && x.size(2) == q.size(2), "heads and tokens");
      TORCH_CHECK(x.stride(3) == 1 && x.stride(2) % 4 == 0 && x.stride(1) % 4 == 0, "strides");
      TORCH_CHECK(reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0, "alignment");
    }
    TORCH_CHECK(q.size(3) == k.size(3), "one size of queries and keys");
    TORCH_CHECK(border.scalar_type() == at::kInt && border.dim() == 1 && border.is_contiguous(), "int32 lengths");
    TORCH_CHECK(border.is_same(cum_k.value()), "the same lengths");
    TORCH_CHECK(max_q > 0 && max_q == max_k && max_q <= q.size(1), "bound of the lengths");
    const int32_t* at = border.const_data_ptr<int32_t>();
    TORCH_CHECK(at[0] >= 0 && at[border.size(0) - 1] <= q.size(1), "lengths within the tokens");
    for (int64_t i = 0; i + 1 < border.size(0); ++i) {
      TORCH_CHECK(at[i] <= at[i + 1] && at[i + 1] - at[i] <= max_q, "lengths that rise and fit");
    }
    // What a call of Lehr may hold: 16 times the queries of a row, or the queries of 16 rows.
    TORCH_CHECK(border.size(0) - 1 <= 16, "few sequences in a call");
  }

  /// Calls body(sequence, first token, number of tokens) for each sequence that is not empty.
  template <class Body>
  void each(const Body& body) const {
    for (int64_t i = 0; i + 1 < border.size(0); ++i) {
      const int64_t first = border[i].item<int64_t>(), count = border[i + 1].item<int64_t>() - first;
      if (count > 0) {
        body(i, first, count);
      }
    }
  }

  /// (H, count, D) of x (1, N, H, D).
  static at::Tensor heads(const at::Tensor& x, int64_t first, int64_t count) {
    return x.squeeze(0).narrow(0, first, count).transpose(0, 1);
  }

  /// Scaled scores (H, count, count); minus infinity where a key is hidden.
  at::Tensor scores(const at::Tensor& q, const at::Tensor& k) const {
    const at::Tensor position = at::arange(q.size(1));
    const at::Tensor behind = position.unsqueeze(1) - position;  // distance from a key to a later query
    at::Tensor seen = behind >= 0;
    seen = window == 0 ? seen : seen.logical_and(behind < window);
    return (q.matmul(k.transpose(1, 2)) * scale).masked_fill(seen.logical_not(), -kInfinity);
  }
};

inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt> efficient_forward_on_host(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& cum_q,
    const std::optional<at::Tensor>& cum_k,
    std::optional<int64_t> max_q,
    std::optional<int64_t> max_k,
    double dropout_p,
    int64_t custom_mask_type,
    bool compute_log_sumexp,
    std::optional<double> scale,
    const std::optional<at::Tensor>& seqlen_k,
    std::optional<int64_t> window) {
  TORCH_CHECK(compute_log_sumexp && !seqlen_k, "the log-sum-exps, and nothing else");
  ++efficient_calls.forward;
  const EfficientOnHost call(
      q, k, v, bias, cum_q, cum_k, max_q.value(), max_k.value(), dropout_p, custom_mask_type, scale, window);
  at::Tensor out = at::full({1, q.size(1), q.size(2), v.size(3)}, kUnwritten, q.options());
  at::Tensor lse = at::full({call.border.size(0) - 1, q.size(2), call.padded}, kUnwritten, q.options());
  call.each([&](int64_t sequence, int64_t first, int64_t count) {
    const auto heads = [&](const at::Tensor& x) { return EfficientOnHost::heads(x, first, count); };
    const at::Tensor scores = call.scores(heads(q), heads(k));
    lse[sequence].narrow(1, 0, count).copy_(scores.logsumexp(-1));
    heads(out).copy_(scores.softmax(-1).matmul(heads(v)));
  });
  return {out, lse, at::empty({}, at::kLong), at::empty({}, at::kLong), *max_q, *max_k};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_backward_on_host(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const std::optional<at::Tensor>& bias,
    const at::Tensor& out,
    const std::optional<at::Tensor>& cum_q,
    const std::optional<at::Tensor>& cum_k,
    int64_t max_q,
    int64_t max_k,
    const at::Tensor& lse,
    double dropout_p,
    const at::Tensor& seed,
    const at::Tensor& offset,
    int64_t custom_mask_type,
    bool bias_requires_grad,
    std::optional<double> scale,
    std::optional<int64_t> num_splits_key,
    std::optional<int64_t> window,
    bool shared_storage_dqdkdv) {
  TORCH_CHECK(!bias_requires_grad && !num_splits_key && !shared_storage_dqdkdv && seed.defined() && offset.defined());
  ++efficient_calls.backward;
  const EfficientOnHost call(q, k, v, bias, cum_q, cum_k, max_q, max_k, dropout_p, custom_mask_type, scale, window);
  TORCH_CHECK(dout.sizes() == out.sizes() && dout.stride(3) == 1 && out.is_contiguous(), "the output has no strides");
  TORCH_CHECK(lse.sizes() == at::IntArrayRef({call.border.size(0) - 1, q.size(2), call.padded}), "the LSE");
  TORCH_CHECK(lse.stride(2) == 1 && lse.stride(1) % 8 == 0 && lse.stride(0) % 8 == 0, "their strides");
  // The kernel's partial sums of the gradients of queries.
  const at::Tensor workspace = at::empty({call.border.size(0) - 1, q.size(2), max_q, q.size(3)}, q.options());
  const auto unwritten = [](const at::Tensor& x) { return at::full(x.sizes(), kUnwritten, x.options()); };
  at::Tensor dq = unwritten(q), dk = unwritten(k), dv = unwritten(v);
  call.each([&](int64_t sequence, int64_t first, int64_t count) {
    const auto heads = [&](const at::Tensor& x) { return EfficientOnHost::heads(x, first, count); };
    const int64_t block =
        (count + EfficientOnHost::kAlignment - 1) / EfficientOnHost::kAlignment * EfficientOnHost::kAlignment;
    const at::Tensor behind = lse[sequence].narrow(1, count, block - count);
    TORCH_CHECK(behind.eq(kInfinity).all().item<bool>(), "infinity up to the end of a block");
    const at::Tensor sums = lse[sequence].narrow(1, 0, count).unsqueeze(-1);
    const at::Tensor weights = (call.scores(heads(q), heads(k)) - sums).exp();
    const at::Tensor products = (heads(dout) * heads(out)).sum(-1, true);
    const at::Tensor dscores = weights * (heads(dout).matmul(heads(v).transpose(1, 2)) - products) * call.scale;
    heads(dq).copy_(dscores.matmul(heads(k)));
    heads(dk).copy_(dscores.transpose(1, 2).matmul(heads(q)));
    heads(dv).copy_(weights.transpose(1, 2).matmul(heads(dout)));
  });
  return {dq, dk, dv, at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_efficient_attention_forward", TORCH_FN(efficient_forward_on_host));
  library.impl("_efficient_attention_backward", TORCH_FN(efficient_backward_on_host));
}

}  // namespace lehr::ops::test
