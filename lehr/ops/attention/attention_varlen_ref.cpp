// The definition of variable-length attention, on the CPU: each sequence is computed as a row of its own.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "lehr/ops/attention/attention_lse.h"
#include "lehr/ops/attention/attention_varlen.h"

namespace lehr::ops::reference {

namespace {
// Calls body(first token, number of tokens) for each sequence that is not empty.
template <class Body>
void each_sequence(const Sequences& sequences, const Body& body) {
  const auto* border = sequences.cumulative_lengths.const_data_ptr<int32_t>();
  for (int64_t i = 0; i + 1 < sequences.cumulative_lengths.size(0); ++i) {
    if (border[i + 1] > border[i]) {
      body(border[i], border[i + 1] - border[i]);
    }
  }
}

std::tuple<at::Tensor, at::Tensor> reference_forward(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Sequences& sequences,
    const AttentionOptions& options) {
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor out = at::empty({q.size(0), q.size(1), v.size(2)}, q.options());
  at::Tensor lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(wide));
  each_sequence(sequences, [&](int64_t first, int64_t count) {
    const auto row = [&](const at::Tensor& x) { return x.narrow(0, first, count).unsqueeze(0); };
    const AttentionPart part = attention_part(row(q), row(k), row(v), {}, options);
    out.narrow(0, first, count).copy_(part.output.squeeze(0));
    lse.narrow(1, first, count).copy_(part.lse.squeeze(0).t());
  });
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> reference_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    const Sequences& sequences,
    const AttentionOptions& options) {
  const auto contiguous = [](const at::Tensor& x) {
    return at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
  };
  at::Tensor dq = contiguous(q), dk = contiguous(k), dv = contiguous(v);
  each_sequence(sequences, [&](int64_t first, int64_t count) {
    const auto row = [&](const at::Tensor& x) { return x.narrow(0, first, count).unsqueeze(0); };
    const auto type = lse.scalar_type();
    const at::Tensor products = (row(dout).to(type) * row(out).to(type)).sum(-1);  // (1, T, Hq)
    const AttentionPartGradients found =
        attention_part_backward(row(dout), products, row(lse.t()), row(q), row(k), row(v), {}, options);
    row(dq).copy_(found.q);
    row(dk).copy_(found.k);
    row(dv).copy_(found.v);
  });
  return {dq, dk, dv};
}
}  // namespace

const VariableLengthKernel kVariableLength = {.forward = reference_forward, .backward = reference_backward};

}  // namespace lehr::ops::reference
