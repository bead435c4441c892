// Variable-length attention on a GPU: the calls of ATen's FlashAttention.
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "lehr/ops/attention/attention_meta.h"
#include "lehr/ops/attention/attention_padding.h"
#include "lehr/ops/attention/attention_varlen.h"

namespace lehr::ops {

namespace {
constexpr int64_t kMostSize = 256;

// Returns the common head size of q, k and v in the kernels.
int64_t flash_size(int64_t size, int64_t value_size) {
  return padded_size(std::max(size, value_size));
}

// FlashAttention's window: the number of keys before and after its own position that are visible to a query.
struct Window {
  explicit Window(const AttentionOptions& options)
      : left(options.window ? std::optional(*options.window - 1) : std::nullopt),
        right(options.window ? std::optional(int64_t{0}) : std::nullopt) {}
  std::optional<int64_t> left;
  std::optional<int64_t> right;
  bool causal() const { return !left; }  // a window that ends at the query's own position implies causal order
};

std::tuple<at::Tensor, at::Tensor> flash_forward(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Sequences& sequences,
    const AttentionOptions& options) {
  const int64_t size = flash_size(q.size(2), v.size(2));
  const Window window(options);
  const auto found = at::_flash_attention_forward(
      padded_heads(q, size),
      padded_heads(k, size),
      padded_heads(v, size),
      sequences.cumulative_lengths,
      sequences.cumulative_lengths,
      sequences.row_length,
      sequences.row_length,
      /*dropout_p=*/0.0,
      window.causal(),
      /*return_debug_mask=*/false,
      options.scale,
      window.left,
      window.right);
  report_sequences(q, v, sequences, options.window, 1);
  return {cut_heads(std::get<0>(found), v.size(2)), std::get<1>(found)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    const Sequences& sequences,
    const AttentionOptions& options) {
  const int64_t size = flash_size(q.size(2), v.size(2));
  const Window window(options);
  const auto no_random_state = [&](at::IntArrayRef shape) { return at::empty(shape, q.options().dtype(at::kUInt64)); };
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      padded_heads(dout, size),
      padded_heads(q, size),
      padded_heads(k, size),
      padded_heads(v, size),
      padded_heads(out, size),
      lse.contiguous(),
      sequences.cumulative_lengths,
      sequences.cumulative_lengths,
      sequences.row_length,
      sequences.row_length,
      /*dropout_p=*/0.0,
      window.causal(),
      no_random_state({2}),
      no_random_state({}),
      options.scale,
      window.left,
      window.right);
  report_sequences(q, v, sequences, options.window, 2);
  return {cut_heads(dq, q.size(2)), cut_heads(dk, k.size(2)), cut_heads(dv, v.size(2))};
}

std::tuple<at::Tensor, at::Tensor> forward_on_meta(
    const at::Tensor& q,
    const at::Tensor& /*k*/,
    const at::Tensor& v,
    const Sequences& sequences,
    const AttentionOptions& options) {
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  report_sequences(q, v, sequences, options.window, 1);
  return {
      at::empty({q.size(0), q.size(1), v.size(2)}, q.options()),
      at::empty({q.size(1), q.size(0)}, q.options().dtype(wide))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_on_meta(
    const at::Tensor& /*dout*/,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& /*out*/,
    const at::Tensor& /*lse*/,
    const Sequences& sequences,
    const AttentionOptions& options) {
  report_sequences(q, v, sequences, options.window, 2);
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  return {like(q), like(k), like(v)};
}
}  // namespace

const VariableLengthKernel kFlash = {.forward = flash_forward, .backward = flash_backward};
const VariableLengthKernel kFlashOnMeta = {.forward = forward_on_meta, .backward = backward_on_meta};

bool flash_takes(at::ScalarType type, int64_t size, int64_t value_size, const AttentionOptions& options) {
  return (type == at::kHalf || type == at::kBFloat16) && flash_size(size, value_size) <= kMostSize && !options.softcap;
}

}  // namespace lehr::ops
