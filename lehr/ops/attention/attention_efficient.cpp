// Variable-length attention on a GPU in the types that FlashAttention does not support: the calls of ATen's
// memory-efficient attention.
//
// The kernel pads its log-sum-exps, and in backward the gradients of queries, to one length for all sequences of a
// call, and a sequence may be as long as its row. So a call takes at most kMostSequences sequences: of several rows, or
// of a part of a row, whose results are then merged. The memory of a call is linear in the tokens of a row.
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "lehr/ops/attention/attention_meta.h"
#include "lehr/ops/attention/attention_padding.h"
#include "lehr/ops/attention/attention_varlen.h"

namespace lehr::ops {

namespace {
constexpr int64_t kMostSequences = 16;
constexpr int64_t kCausal = 1;            // sdp::CustomMaskType::CausalFromTopLeft
constexpr int64_t kLogSumAlignment = 32;  // kAlignLSE of the kernel

// The sequences of one call.
struct Part {
  int64_t first_token = 0;  // of the rows that the call reads
  int64_t tokens = 0;
  int64_t longest = 0;  // bounds the length of a sequence
  at::Tensor lengths;   // (S + 1) int32, cumulative, from the first token of these rows
  at::Tensor sequence;  // (tokens): the sequence of each token
  at::Tensor own;       // (tokens) bool: the tokens of these sequences; undefined: all

  int64_t sequences() const { return lengths.size(0) - 1; }
  int64_t padded_length() const { return (longest + kLogSumAlignment - 1) / kLogSumAlignment * kLogSumAlignment; }
  at::Tensor of(const at::Tensor& x) const { return x.narrow(0, first_token, tokens); }

  // Returns `found` for the part's own tokens, else `before`; the tokens are dimension `dim`.
  at::Tensor merge(const at::Tensor& before, const at::Tensor& found, int64_t dim) const {
    if (!own.defined()) {
      return found;
    }
    std::vector<int64_t> shape(static_cast<size_t>(found.dim()), 1);
    shape[static_cast<size_t>(dim)] = tokens;
    return at::where(own.view(shape), found, before);
  }

  // Converts the kernel's log-sum-exps (S, Hq, padded length) to (Hq, tokens), and back.
  at::Tensor unpadded(const at::Tensor& padded) const {
    const int64_t heads = padded.size(1), length = padded.size(2);
    const at::Tensor start = lengths.index_select(0, sequence).to(at::kLong);
    const at::Tensor place = (at::arange(tokens, start.options()) - start).clamp(0, length - 1);
    const at::Tensor head = at::arange(heads, start.options()).unsqueeze(1) * length;  // (Hq, 1)
    const at::Tensor index = sequence * (heads * length) + place + head;               // (Hq, tokens)
    return padded.flatten().index_select(0, index.flatten()).view({heads, tokens});
  }
  at::Tensor padded(const at::Tensor& lse) const {
    const int64_t heads = lse.size(0), length = padded_length();
    const at::Tensor border = lengths.to(at::kLong).unsqueeze(1);                                      // (S + 1, 1)
    const at::Tensor token = border.narrow(0, 0, sequences()) + at::arange(length, border.options());  // (S, length)
    const at::Tensor behind = token >= border.narrow(0, 1, sequences());
    const at::Tensor found = lse.index_select(1, token.clamp_max(tokens - 1).flatten());
    const at::Tensor by_sequence = found.view({heads, sequences(), length}).transpose(0, 1);
    // The kernel reads whole blocks, and needs infinity behind the end of a sequence.
    return by_sequence.masked_fill(behind.unsqueeze(1), std::numeric_limits<double>::infinity());
  }
};

std::vector<Part> parts_of(const Sequences& sequences, int64_t tokens) {
  const int64_t rows = tokens / sequences.row_length;
  const int64_t of_row = (sequences.cumulative_lengths.size(0) - 1) / rows;
  const int64_t together = std::max<int64_t>(1, kMostSequences / of_row);  // rows of a call
  std::vector<Part> parts;
  for (int64_t row = 0; row < rows; row += together) {
    const int64_t count = std::min(together, rows - row);
    Part all{
        .first_token = row * sequences.row_length,
        .tokens = count * sequences.row_length,
        .longest = sequences.row_length};
    all.lengths = sequences.cumulative_lengths.narrow(0, row * of_row, count * of_row + 1) - all.first_token;
    const at::Tensor position = at::arange(all.tokens, all.lengths.options());
    all.sequence =
        at::searchsorted(all.lengths.narrow(0, 1, all.sequences()), position, /*out_int32=*/false, /*right=*/true);
    if (all.sequences() <= kMostSequences) {
      parts.push_back(all);
      continue;
    }
    for (int64_t first = 0; first < all.sequences(); first += kMostSequences) {
      Part part = all;
      const int64_t some = std::min(kMostSequences, all.sequences() - first);
      part.lengths = all.lengths.narrow(0, first, some + 1);
      part.own = (all.sequence >= first).logical_and(all.sequence < first + some);
      part.sequence = (all.sequence - first).clamp(0, some - 1);
      parts.push_back(part);
    }
  }
  return parts;
}

// The kernel has no grouped heads: repeats keys or values for each query head.
at::Tensor repeated(const at::Tensor& x, int64_t heads) {
  return x.size(1) == heads ? x : x.repeat_interleave(heads / x.size(1), 1);
}
at::Tensor summed(const at::Tensor& gradient, int64_t heads) {
  return gradient.size(1) == heads ? gradient : gradient.unflatten(1, {heads, -1}).sum(2);
}

// The form of tokens (N, H, D) that the kernel reads: (1, N, H, padded D).
at::Tensor kernel_form(const at::Tensor& x) {
  return padded_heads(x, padded_size(x.size(2))).unsqueeze(0);
}

std::optional<int64_t> window_of(const Part& part, const AttentionOptions& options) {
  return options.window && *options.window < part.longest ? options.window : std::nullopt;
}

std::tuple<at::Tensor, at::Tensor> efficient_forward(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Sequences& sequences,
    const AttentionOptions& options) {
  at::Tensor out = at::empty({q.size(0), q.size(1), v.size(2)}, q.options()), lse;
  for (const Part& part : parts_of(sequences, q.size(0))) {
    const auto found = at::_efficient_attention_forward(
        kernel_form(part.of(q)),
        kernel_form(repeated(part.of(k), q.size(1))),
        kernel_form(repeated(part.of(v), q.size(1))),
        /*bias=*/std::nullopt,
        part.lengths,
        part.lengths,
        part.longest,
        part.longest,
        /*dropout_p=*/0.0,
        kCausal,
        /*compute_log_sumexp=*/true,
        options.scale,
        /*seqlen_k=*/std::nullopt,
        window_of(part, options));
    const at::Tensor sums = part.unpadded(std::get<1>(found));
    if (!lse.defined()) {
      lse = at::empty({q.size(1), q.size(0)}, sums.options());
    }
    at::Tensor part_out = part.of(out), part_sums = lse.narrow(1, part.first_token, part.tokens);
    part_out.copy_(part.merge(part_out, cut_heads(std::get<0>(found).squeeze(0), v.size(2)), 0));
    part_sums.copy_(part.merge(part_sums, sums, 1));
  }
  report_sequences(q, v, sequences, options.window, 1);
  return {out, lse};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> efficient_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    const Sequences& sequences,
    const AttentionOptions& options) {
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
  at::Tensor dq = like(q), dk = like(k), dv = like(v);
  const at::Tensor no_random_state = at::empty({}, q.options().dtype(at::kLong));
  for (const Part& part : parts_of(sequences, q.size(0))) {
    const auto found = at::_efficient_attention_backward(
        kernel_form(part.of(dout)),
        kernel_form(part.of(q)),
        kernel_form(repeated(part.of(k), q.size(1))),
        kernel_form(repeated(part.of(v), q.size(1))),
        /*bias=*/std::nullopt,
        kernel_form(part.of(out).contiguous()),
        part.lengths,
        part.lengths,
        part.longest,
        part.longest,
        part.padded(lse.narrow(1, part.first_token, part.tokens)),
        /*dropout_p=*/0.0,
        no_random_state,
        no_random_state,
        kCausal,
        /*bias_requires_grad=*/false,
        options.scale,
        /*num_splits_key=*/std::nullopt,
        window_of(part, options));
    const auto write = [&](at::Tensor& gradients, const at::Tensor& gradient) {
      at::Tensor place = part.of(gradients);
      const at::Tensor cut = cut_heads(gradient.squeeze(0), gradients.size(2));
      place.copy_(part.merge(place, summed(cut, gradients.size(1)), 0));
    };
    write(dq, std::get<0>(found));
    write(dk, std::get<1>(found));
    write(dv, std::get<2>(found));
  }
  report_sequences(q, v, sequences, options.window, 2);
  return {dq, dk, dv};
}
}  // namespace

const VariableLengthKernel kEfficient = {.forward = efficient_forward, .backward = efficient_backward};

bool efficient_takes(at::ScalarType type, const AttentionOptions& options) {
  return (type == at::kFloat || type == at::kHalf || type == at::kBFloat16) && !options.softcap;
}

}  // namespace lehr::ops
