// A stand-in for ATen's FlashAttention on the CPU, so that Lehr's calls of it are tested without a GPU:
// at::_flash_attention_forward and _backward get a CPU kernel in plain matmuls. It checks its arguments as the real one
// (flash_attn/flash_api.cpp of PyTorch 2.11), except their dtype. At most one source of a program may include this
// file.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <limits>

namespace lehr::ops::test {

struct FlashCalls {
  int forward = 0;
  int backward = 0;
};
inline FlashCalls flash_calls;

/// The checked arguments of a call.
struct FlashOnHost {
  at::Tensor border;  // cumulative lengths of the sequences
  double scale;
  int64_t left, right;  // of the window; -1: unlimited

  FlashOnHost(
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const at::Tensor& cum_q,
      const at::Tensor& cum_k,
      int64_t max_q,
      int64_t max_k,
      double dropout_p,
      bool is_causal,
      std::optional<double> given_scale,
      std::optional<int64_t> window_left,
      std::optional<int64_t> window_right)
      : border(cum_q),
        scale(given_scale.value()),
        left(window_left.value_or(-1)),
        right(is_causal ? 0 : window_right.value_or(-1)) {
    TORCH_CHECK(dropout_p == 0, "no dropout");
    TORCH_CHECK(max_q == max_k && max_q > 1, "rows of one length, but not one that is taken for decoding");
    TORCH_CHECK(cum_q.scalar_type() == at::kInt && cum_q.is_contiguous() && cum_q.is_same(cum_k), "int32 lengths");
    TORCH_CHECK(q.dim() == 3 && q.size(2) % 8 == 0 && q.size(2) <= 256, "head sizes: multiples of 8 up to 256");
    TORCH_CHECK(q.size(1) % k.size(1) == 0, "grouped heads");
    TORCH_CHECK(k.sizes() == v.sizes() && q.size(2) == k.size(2), "one head size");
    for (const at::Tensor& x : {q, k, v}) {
      TORCH_CHECK(x.stride(2) == 1 && x.stride(1) % 8 == 0 && x.stride(0) % 8 == 0, "strides");
      TORCH_CHECK(reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0, "alignment");
    }
    const int32_t* at = border.const_data_ptr<int32_t>();
    TORCH_CHECK(at[0] == 0 && at[border.size(0) - 1] == q.size(0), "lengths from the first token to the last");
    for (int64_t i = 0; i + 1 < border.size(0); ++i) {
      TORCH_CHECK(at[i] <= at[i + 1] && at[i + 1] - at[i] <= max_q, "lengths that rise and fit");
    }
    if (left >= max_k) {
      left = -1;
    }
  }

  /// Calls body(first token, number of tokens) for each sequence.
  template <class Body>
  void each(const Body& body) const {
    for (int64_t i = 0; i + 1 < border.size(0); ++i) {
      const int64_t first = border[i].item<int64_t>(), count = border[i + 1].item<int64_t>() - first;
      if (count > 0) {
        body(first, count);
      }
    }
  }

  /// (H, count, D) of tokens (N, H or fewer, D).
  static at::Tensor heads(const at::Tensor& x, int64_t first, int64_t count, int64_t heads) {
    return x.narrow(0, first, count).repeat_interleave(heads / x.size(1), 1).transpose(0, 1);
  }

  /// Scaled scores (H, count, count); minus infinity where a key is hidden.
  at::Tensor scores(const at::Tensor& q, const at::Tensor& k) const {
    const at::Tensor position = at::arange(q.size(1));
    const at::Tensor behind = position.unsqueeze(1) - position;  // distance from a key to a later query
    at::Tensor seen = at::ones_like(behind, at::kBool);
    seen = right < 0 ? seen : seen.logical_and(behind >= -right);
    seen = left < 0 ? seen : seen.logical_and(behind <= left);
    return (q.matmul(k.transpose(1, 2)) * scale)
        .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
};

inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward_on_host(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const std::optional<at::Tensor>& cum_q,
    const std::optional<at::Tensor>& cum_k,
    int64_t max_q,
    int64_t max_k,
    double dropout_p,
    bool is_causal,
    bool return_debug_mask,
    std::optional<double> scale,
    std::optional<int64_t> left,
    std::optional<int64_t> right,
    const std::optional<at::Tensor>& seqused_k,
    const std::optional<at::Tensor>& alibi_slopes) {
  TORCH_CHECK(!return_debug_mask && !seqused_k && !alibi_slopes, "nothing else");
  ++flash_calls.forward;
  const FlashOnHost call(q, k, v, *cum_q, *cum_k, max_q, max_k, dropout_p, is_causal, scale, left, right);
  at::Tensor out = at::empty_like(q), lse = at::empty({q.size(1), q.size(0)}, q.options());
  call.each([&](int64_t first, int64_t count) {
    const auto heads = [&](const at::Tensor& x) { return FlashOnHost::heads(x, first, count, q.size(1)); };
    const at::Tensor scores = call.scores(heads(q), heads(k));
    lse.narrow(1, first, count).copy_(scores.logsumexp(-1));
    out.narrow(0, first, count).copy_(scores.softmax(-1).matmul(heads(v)).transpose(0, 1));
  });
  return {out, lse, at::empty({2}, at::kUInt64), at::empty({}, at::kUInt64), at::Tensor()};
}

inline std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward_on_host(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    const at::Tensor& cum_q,
    const at::Tensor& cum_k,
    int64_t max_q,
    int64_t max_k,
    double dropout_p,
    bool is_causal,
    const at::Tensor& rng_state,
    const at::Tensor& unused,
    std::optional<double> scale,
    std::optional<int64_t> left,
    std::optional<int64_t> right) {
  TORCH_CHECK(rng_state.numel() == 2 && unused.numel() == 1, "random state");
  TORCH_CHECK(dout.sizes() == q.sizes() && out.sizes() == q.sizes() && dout.stride(2) == 1 && out.stride(2) == 1);
  TORCH_CHECK(lse.is_contiguous() && lse.sizes() == at::IntArrayRef({q.size(1), q.size(0)}), "the LSE");
  ++flash_calls.backward;
  const FlashOnHost call(q, k, v, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, scale, left, right);
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  call.each([&](int64_t first, int64_t count) {
    const auto heads = [&](const at::Tensor& x) { return FlashOnHost::heads(x, first, count, q.size(1)); };
    const auto grouped = [&](const at::Tensor& x) {  // (H, count, D) to (count, Hkv, D)
      return x.transpose(0, 1).unflatten(1, {k.size(1), q.size(1) / k.size(1)}).sum(2);
    };
    const at::Tensor weights = (call.scores(heads(q), heads(k)) - lse.narrow(1, first, count).unsqueeze(-1)).exp();
    const at::Tensor products = (heads(dout) * heads(out)).sum(-1, true);
    const at::Tensor dscores = weights * (heads(dout).matmul(heads(v).transpose(1, 2)) - products) * call.scale;
    dq.narrow(0, first, count).copy_(dscores.matmul(heads(k)).transpose(0, 1));
    dk.narrow(0, first, count).copy_(grouped(dscores.transpose(1, 2).matmul(heads(q))));
    dv.narrow(0, first, count).copy_(grouped(weights.transpose(1, 2).matmul(heads(dout))));
  });
  return {dq, dk, dv};
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", TORCH_FN(flash_forward_on_host));
  library.impl("_flash_attention_backward", TORCH_FN(flash_backward_on_host));
}

}  // namespace lehr::ops::test
