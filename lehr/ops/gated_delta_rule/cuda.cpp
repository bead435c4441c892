// The gated delta rule on a GPU.
//
// The equations are those of chunk.inl. Everything within a chunk is computed for all chunks at once: matmuls by ATen,
// one launch each, and decays and triangular matrices by kernels. With the inverse of a chunk's system, its corrections
// are D = u + w S, where u = inverse (beta value) and w = -inverse (beta E k), so that only D and the next state remain
// for the scan over chunks, which is one launch (DeltaScan). In backward, the gradient of the state goes through the
// same scan in reverse order, with w and k in each other's place.
//
// Chunks are cut by position, because the host does not know where documents begin: a chunk may have tokens of several,
// and factors of zero keep them apart (DeltaDecays).
#include "lehr/ops/gated_delta_rule/cuda.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "lehr/meter/operation_meter.h"
#include "lehr/ops/device.h"
#include "lehr/ops/gated_delta_rule/launches.h"

namespace lehr::ops::cuda {

namespace {
using cpu::elements;

template <class Body>
void launch(const char* name, const at::Tensor& like, const Body& body) {
  const c10::DeviceGuard guard(like.device());
  check_status(name, body(table().get<DeltaLaunches>()));
}

at::Tensor times_transposed(const at::Tensor& a, const at::Tensor& b) {
  return at::bmm(a, b.transpose(1, 2));
}
at::Tensor transposed_times(const at::Tensor& a, const at::Tensor& b) {
  return at::bmm(a.transpose(1, 2), b);
}
// Sums over the last two dimensions, without a product in memory: (N).
at::Tensor dots(const at::Tensor& a, const at::Tensor& b) {
  return at::bmm(a.flatten(1).unsqueeze(1), b.flatten(1).unsqueeze(2)).flatten();
}
// Sums over the last dimension.
at::Tensor row_dots(const at::Tensor& a, const at::Tensor& b) {
  return (a * b).sum(-1);
}

// Pads tokens with zeros to whole chunks.
at::Tensor padded(const at::Tensor& x) {
  const int64_t more = (kDeltaChunk - x.size(1) % kDeltaChunk) % kDeltaChunk;
  std::vector<int64_t> pad(static_cast<size_t>(2 * (x.dim() - 1)), 0);
  pad.back() = more;
  return more == 0 ? x : at::constant_pad_nd(x, pad);
}

// The rows and key heads of one pass. `in` has the padded inputs of all.
struct Part {
  const GatedDeltaInputs& in;
  DeltaLayout layout;

  at::Tensor rows_of(const at::Tensor& x) const { return x.narrow(0, layout.first_row, layout.rows); }
  // Views (rows, heads, chunks, C, K) and (rows, heads, chunks, group, C, V) of tensors like keys and values.
  at::Tensor keys_of(const at::Tensor& x) const {
    const at::Tensor own = rows_of(x).narrow(2, layout.first_head, layout.heads);
    return own.unflatten(1, {layout.chunks, kDeltaChunk}).permute({0, 3, 1, 2, 4});
  }
  at::Tensor values_of(const at::Tensor& x) const {
    const at::Tensor own = rows_of(x).narrow(2, layout.first_head * layout.group, layout.heads * layout.group);
    return own.unflatten(2, {layout.heads, layout.group})
        .unflatten(1, {layout.chunks, kDeltaChunk})
        .permute({0, 3, 1, 4, 2, 5});
  }
  // A view (rows, heads group, K, V) of a tensor of states.
  at::Tensor states_of(const at::Tensor& x) const {
    return rows_of(x).narrow(1, layout.first_head * layout.group, layout.heads * layout.group);
  }
  at::TensorOptions options() const { return in.decay.options(); }
  int64_t size() const { return in.query.size(3); }
  int64_t value_size() const { return in.value.size(3); }
  // Chunks of all value heads: N.
  int64_t count() const { return layout.rows * layout.heads * layout.chunks * layout.group; }
};

// A contiguous copy in float32, with the leading dimensions flattened.
at::Tensor chunks_of(const at::Tensor& view, const Part& part) {
  at::Tensor copy = at::empty(view.sizes(), part.options());
  copy.copy_(view);
  return copy.flatten(0, -3);
}

// Rows scaled to a length, and the inverse of their norms.
struct Normed {
  at::Tensor x;        // (rows heads chunks, C, K)
  at::Tensor inverse;  // (rows heads chunks, C, 1)
  double length;
  Normed(const at::Tensor& given, double of_length) : x(given), length(of_length) {
    inverse = x.square().sum(-1, /*keepdim=*/true).add_(1e-6).rsqrt_();
    x.mul_(inverse).mul_(length);
  }
  // Writes the gradient of the rows before the norm, which is (length / norm) (d - u (u . d)) with u = x / length.
  void backward(const at::Tensor& dx, const at::Tensor& to) const {
    const at::Tensor along = (x * dx).sum(-1, /*keepdim=*/true).div_(length * length);
    to.copy_((dx - x * along).mul_(inverse).mul_(length).view(to.sizes()));
  }
};

// What both passes need of the chunks. Tensors of value heads begin with N, those of key heads with N / group.
struct Chunks {
  const Part& part;
  Normed query, key;
  at::Tensor sum, from_begin, to_end, beta, begin;  // DeltaDecays
  at::Tensor kk, qk, inverse, weights, mix;         // DeltaTriangles
  at::Tensor offset, through, key_to_end;           // u (N, C, V), w and F k (N, C, K)

  Chunks(const Part& of, bool with_output)
      : part(of),
        query(chunks_of(part.keys_of(part.in.query), part), 1 / std::sqrt(static_cast<double>(part.size()))),
        key(chunks_of(part.keys_of(part.in.key), part), 1) {
    const int64_t count = part.count();
    sum = at::empty({count, kDeltaChunk}, part.options().dtype(at::kDouble));
    for (at::Tensor* tensor : {&from_begin, &to_end, &beta}) {
      *tensor = at::empty({count, kDeltaChunk}, part.options());
    }
    begin = at::empty({count, kDeltaChunk}, part.options().dtype(at::kInt));
    launch("gated_delta_rule decays", sum, [&](const DeltaLaunches& kernels) {
      return kernels.decays(part.layout, elements<float>(part.in.decay), elements<float>(part.in.beta), decays());
    });
    kk = times_transposed(key.x, key.x);
    qk = with_output ? times_transposed(query.x, key.x) : at::Tensor();
    inverse = at::empty({count, kDeltaChunk, kDeltaChunk}, part.options());
    weights = at::empty_like(inverse);
    mix = with_output ? at::empty_like(inverse) : at::Tensor();
    launch("gated_delta_rule triangles", sum, [&](const DeltaLaunches& kernels) {
      return kernels.triangles(
          part.layout,
          decays(),
          {.kk = elements<float>(kk),
           .qk = elements<float>(qk),
           .inverse = elements<float>(inverse),
           .weights = elements<float>(weights),
           .mix = elements<float>(mix)});
    });
    const int64_t stacked = part.layout.group * kDeltaChunk;
    through = at::bmm(weights.view({-1, stacked, kDeltaChunk}), key.x).view({count, kDeltaChunk, part.size()});
    weights.reset();
    offset = at::bmm(inverse, chunks_of(part.values_of(part.in.value), part).mul_(beta.unsqueeze(-1)));
    key_to_end = scaled(key.x, to_end);
  }

  DeltaDecays decays() const {
    return {
        elements<double>(sum),
        elements<float>(from_begin),
        elements<float>(to_end),
        elements<float>(beta),
        elements<int32_t>(begin)};
  }
  // Rows of a key head, times a factor for each value head: (N, C, K).
  at::Tensor scaled(const at::Tensor& x, const at::Tensor& factors) const {
    const at::Tensor by_group = factors.view({-1, part.layout.group, kDeltaChunk, 1});
    return (x.unsqueeze(1) * by_group).view({part.count(), kDeltaChunk, part.size()});
  }
  at::Tensor states() const { return at::empty({part.count(), part.size(), part.value_size()}, part.options()); }
  at::Tensor final_states() const {
    const DeltaLayout& layout = part.layout;
    return at::empty({layout.rows, layout.heads * layout.group, part.size(), part.value_size()}, part.options());
  }
  void scan(const DeltaScan& call) const {
    report_attention(4.0 * static_cast<double>(part.count() * kDeltaChunk * part.size() * part.value_size()));
    launch("gated_delta_rule scan", sum, [&](const DeltaLaunches& kernels) {
      DeltaScan whole = call;
      whole.from_begin = elements<float>(from_begin);
      whole.size = part.size();
      whole.value_size = part.value_size();
      return kernels.scan(part.layout, whole);
    });
  }
  // Computes the corrections D and, if requested, the state before each chunk. Returns the final state of each row.
  at::Tensor forward(const at::Tensor& states, const at::Tensor& corrections) const {
    const at::Tensor& initial = part.in.initial_state;
    const at::Tensor start = initial.defined() ? part.states_of(initial).contiguous() : initial;
    at::Tensor last = final_states();
    scan(
        {.left = elements<float>(through),
         .right = elements<float>(key_to_end),
         .offset = elements<float>(offset),
         .start = elements<float>(start),
         .states = elements<float>(states),
         .x = elements<float>(corrections),
         .last = elements<float>(last)});
    return last;
  }
};

struct Results {
  at::Tensor output, final_state;
};

void forward_of(const Part& part, const Results& results) {
  const bool with_output = results.output.defined();
  const Chunks chunks(part, with_output);
  const at::Tensor states = with_output ? chunks.states() : at::Tensor();
  const at::Tensor corrections = with_output ? at::empty_like(chunks.offset) : at::Tensor();
  part.states_of(results.final_state).copy_(chunks.forward(states, corrections));
  if (with_output) {
    at::Tensor output = at::bmm(chunks.scaled(chunks.query.x, chunks.from_begin), states);  // E q S
    output.baddbmm_(chunks.mix, corrections);
    const at::Tensor to = part.values_of(results.output);
    to.copy_(output.view(to.sizes()));
  }
}

// The names are those of gradient.inl; `gradients` are padded tensors in the order of the inputs.
void backward_of(
    const Part& part, const at::Tensor& given, const at::Tensor& dfinal, const std::vector<at::Tensor>& gradients) {
  const Chunks chunks(part, /*with_output=*/true);
  const at::Tensor states = chunks.states(), corrections = at::empty_like(chunks.offset);
  chunks.forward(states, corrections);
  const at::Tensor doutput = chunks_of(part.values_of(given), part);
  const at::Tensor query_begin = chunks.scaled(chunks.query.x, chunks.from_begin);  // E q
  const at::Tensor from_outputs = transposed_times(chunks.mix, doutput);            // of D
  const at::Tensor dstates = transposed_times(query_begin, doutput);
  const at::Tensor dcorrections = at::empty_like(corrections), dinitial = chunks.final_states();
  const at::Tensor dlast = dfinal.defined() ? part.states_of(dfinal).contiguous() : dfinal;
  chunks.scan(
      {.left = elements<float>(chunks.key_to_end),
       .right = elements<float>(chunks.through),
       .offset = elements<float>(from_outputs),
       .start = elements<float>(dlast),
       .states = elements<float>(dstates),  // the gradient of the state after each chunk
       .x = elements<float>(dcorrections),
       .last = elements<float>(dinitial),
       .reverse = true,
       .added = elements<float>(dstates)});
  if (gradients[5].defined()) {
    part.states_of(gradients[5]).copy_(dinitial);
  }

  const at::Tensor begin = chunks.from_begin.unsqueeze(-1), end = chunks.to_end.unsqueeze(-1);
  const at::Tensor dright = transposed_times(chunks.inverse, dcorrections);
  const at::Tensor held = at::bmm(chunks.scaled(chunks.key.x, chunks.from_begin), states);  // E k S
  const at::Tensor wanted = chunks_of(part.values_of(part.in.value), part).sub_(held);
  const at::Tensor dwanted = dright * chunks.beta.unsqueeze(-1);
  const at::Tensor dvalue = part.values_of(gradients[2]);
  dvalue.copy_(dwanted.view(dvalue.sizes()));
  // Through the states of queries and keys: for each value head, (rows heads chunks, group, C, K).
  const auto in_groups = [&](const at::Tensor& x) { return x.view({-1, part.layout.group, kDeltaChunk, part.size()}); };
  const at::Tensor queries = chunks.query.x.unsqueeze(1), keys = chunks.key.x.unsqueeze(1);
  const at::Tensor dquery_begin = in_groups(times_transposed(doutput, states).mul_(begin));
  const at::Tensor dkey_begin = in_groups(times_transposed(dwanted, states).mul_(begin));
  const at::Tensor dkey_end = in_groups(times_transposed(corrections, dstates).mul_(end));
  const at::Tensor through_begin = row_dots(dquery_begin, queries) - row_dots(dkey_begin, keys);
  const at::Tensor through_end = row_dots(dkey_end, keys);
  const at::Tensor through_whole = dots(states, dstates).mul_(chunks.from_begin.select(1, kDeltaChunk - 1));
  const at::Tensor dbeta_direct = row_dots(dright, wanted);
  const at::Tensor outer = times_transposed(dright, corrections), dmix = times_transposed(doutput, corrections);
  const at::Tensor dqk = at::empty_like(chunks.qk), dkk = at::empty_like(chunks.kk);
  launch("gated_delta_rule backward", outer, [&](const DeltaLaunches& kernels) {
    return kernels.backward(
        part.layout,
        chunks.decays(),
        {.kk = elements<float>(chunks.kk),
         .qk = elements<float>(chunks.qk),
         .outer = elements<float>(outer),
         .dmix = elements<float>(dmix),
         .through_begin = elements<float>(through_begin),
         .through_end = elements<float>(through_end),
         .through_whole = elements<float>(through_whole),
         .dbeta_direct = elements<float>(dbeta_direct),
         .dkk = elements<float>(dkk),
         .dqk = elements<float>(dqk),
         .ddecay = elements<float>(gradients[3]),
         .dbeta = elements<float>(gradients[4])});
  });

  at::Tensor dquery = dquery_begin.sum(1), dkey = (dkey_end - dkey_begin).sum(1);
  dquery.baddbmm_(dqk, chunks.key.x);
  dkey.baddbmm_(dqk.transpose(1, 2), chunks.query.x);
  dkey.baddbmm_(dkk, chunks.key.x).baddbmm_(dkk.transpose(1, 2), chunks.key.x);
  chunks.query.backward(dquery, part.keys_of(gradients[0]));
  chunks.key.backward(dkey, part.keys_of(gradients[1]));
}

GatedDeltaInputs padded(const GatedDeltaInputs& in) {
  return {
      .query = padded(in.query),
      .key = padded(in.key),
      .value = padded(in.value),
      .decay = padded(in.decay),
      .beta = padded(in.beta),
      .initial_state = in.initial_state,
      .cumulative_lengths = in.cumulative_lengths};
}

// The float32 numbers per token that a value head and a key head need at the same time, about.
struct Needed {
  int64_t of_value_head, of_key_head;
};
Needed forward_needs(const GatedDeltaInputs& in) {
  const int64_t size = in.query.size(3), value_size = in.value.size(3), states = size * value_size / kDeltaChunk;
  return {4 * (size + value_size + kDeltaChunk) + states, 4 * size + 3 * kDeltaChunk};
}
Needed backward_needs(const GatedDeltaInputs& in) {
  const int64_t size = in.query.size(3), value_size = in.value.size(3), states = size * value_size / kDeltaChunk;
  return {8 * size + 10 * value_size + 6 * kDeltaChunk + 2 * states, 8 * size + 4 * kDeltaChunk};
}

// Calls body(part) for parts of the rows and key heads that need about that many bytes each.
template <class Body>
void for_parts(const GatedDeltaInputs& in, int64_t tokens, const Needed& needed, double bytes, const Body& body) {
  const int64_t rows = in.query.size(0), heads = in.query.size(2), group = in.value.size(2) / heads;
  const auto numbers = static_cast<double>(in.query.size(1) * (needed.of_value_head * group + needed.of_key_head));
  const auto most = std::max<int64_t>(1, static_cast<int64_t>(bytes / (4 * numbers)));  // heads of rows
  const int64_t rows_at_once = std::max<int64_t>(1, most / heads), heads_at_once = std::min(most, heads);
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    for (int64_t head = 0; head < heads; head += heads_at_once) {
      body(Part{
          in,
          {.rows = std::min(rows_at_once, rows - row),
           .heads = std::min(heads_at_once, heads - head),
           .chunks = in.query.size(1) / kDeltaChunk,
           .group = group,
           .first_row = row,
           .first_head = head,
           .all_heads = heads,
           .tokens = tokens,
           .cumulative_lengths = elements<int32_t>(in.cumulative_lengths),
           .borders = in.cumulative_lengths.defined() ? in.cumulative_lengths.numel() : 0}});
    }
  }
}
}  // namespace

bool supports_gated_delta(const GatedDeltaInputs& in) {
  return in.update == StateUpdate::correct && supports(in.query) && in.query.numel() > 0 && in.value.numel() > 0 &&
         in.query.size(1) >= kFewestDeltaTokens && in.query.size(3) <= kMostDeltaSize;
}

GatedDelta gated_delta_rule(const GatedDeltaInputs& given, bool with_output, double temporary_bytes) {
  check_devices(
      "gated_delta_rule", {given.query, given.key, given.value, given.decay, given.beta, given.initial_state});
  const int64_t tokens = given.query.size(1);
  const GatedDeltaInputs in = padded(given);
  const Results results{
      .output = with_output ? at::empty_like(in.value) : at::Tensor(),
      .final_state =
          at::empty({in.query.size(0), in.value.size(2), in.query.size(3), in.value.size(3)}, in.decay.options())};
  for_parts(in, tokens, forward_needs(in), temporary_bytes, [&](const Part& part) { forward_of(part, results); });
  return {
      .output = with_output ? results.output.narrow(1, 0, tokens).contiguous() : at::Tensor(),
      .final_state = results.final_state};
}

std::vector<at::Tensor> gated_delta_rule_backward(
    const GatedDeltaInputs& given, const at::Tensor& doutput, const at::Tensor& dfinal_state, double temporary_bytes) {
  const at::NoGradGuard no_grad;
  const int64_t tokens = given.query.size(1);
  const GatedDeltaInputs in = padded(given);
  const auto like = [](const at::Tensor& tensor) { return tensor.defined() ? at::empty_like(tensor) : at::Tensor(); };
  std::vector<at::Tensor> gradients{
      like(in.query), like(in.key), like(in.value), like(in.decay), like(in.beta), like(in.initial_state)};
  const at::Tensor incoming = padded(doutput);
  for_parts(in, tokens, backward_needs(in), temporary_bytes, [&](const Part& part) {
    backward_of(part, incoming, dfinal_state, gradients);
  });
  for (size_t i = 0; i < 5; ++i) {
    gradients[i] = gradients[i].narrow(1, 0, tokens).contiguous();
  }
  return gradients;
}

}  // namespace lehr::ops::cuda
