// The gated delta rule on a GPU.
//
// The equations are those of chunk.inl. Everything within a chunk is computed for all chunks at once: matmuls by ATen,
// one launch each, and decays and triangular matrices by kernels. With the inverse of a chunk's system, its corrections
// are D = u + w S, where u = inverse (beta value) and w = -inverse (beta E k), so that only D and the next state remain
// for the scan over chunks, which is one launch (DeltaScan). In backward, the gradient of the state goes through the
// same scan in reverse order, with w and k in each other's place.
//
// Without corrections (StateUpdate::add) D = beta value, so the scan has no products: the terms that chunks add to the
// state are a batched matmul before it, and the gradient of D through the next state is one after it.
//
// Chunks are cut by position, because the host does not know where documents begin: a chunk may have tokens of several,
// and factors of zero keep them apart (DeltaDecays).
#include "lehr/ops/gated_delta_rule/cuda.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "lehr/meter/operation_meter.h"
#include "lehr/ops/device.h"
#include "lehr/ops/gated_delta_rule/launches.h"
#include "lehr/ops/gated_delta_rule/parts.h"

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

// A contiguous copy in float32, with the leading dimensions flattened.
at::Tensor chunks_of(const at::Tensor& view, const DeltaPart& part) {
  at::Tensor copy = at::empty(view.sizes(), part.options());
  copy.copy_(view);
  return copy.flatten(0, -3);
}

// Queries or keys in float32. With corrections they are scaled to a length.
struct Rows {
  at::Tensor x;        // (rows heads chunks, C, K)
  at::Tensor inverse;  // of their norms, (rows heads chunks, C, 1); undefined if they are not normed
  double length;
  Rows(const at::Tensor& given, bool normed, double of_length) : x(given), length(of_length) {
    if (normed) {
      inverse = x.square().sum(-1, /*keepdim=*/true).add_(1e-6).rsqrt_();
      x.mul_(inverse).mul_(length);
    }
  }
  // Writes the gradient of the rows before the norm, which is (length / norm) (d - u (u . d)) with u = x / length.
  void backward(const at::Tensor& dx, const at::Tensor& to) const {
    if (!inverse.defined()) {
      to.copy_(dx.view(to.sizes()));
      return;
    }
    const at::Tensor along = (x * dx).sum(-1, /*keepdim=*/true).div_(length * length);
    to.copy_((dx - x * along).mul_(inverse).mul_(length).view(to.sizes()));
  }
};

// The results of a scan: of forward, or in reverse their gradients.
struct Scanned {
  at::Tensor corrections = {};  // D, (N, C, V); undefined if no outputs follow
  at::Tensor states = {};  // before each chunk, or their gradients after it, (N, K, V); undefined if no outputs follow
  at::Tensor last = {};    // (rows, heads group, K, V): the final state of each row, or the gradient of the initial one
};

// What forward and backward need of the chunks. Tensors of value heads begin with N, those of key heads with N / group.
struct Chunks {
  const DeltaPart& part;
  bool corrects;
  Rows query, key;
  at::Tensor sum, from_begin, to_end, beta, begin;  // DeltaDecays
  at::Tensor qk, mix;                               // DeltaTriangles; undefined without outputs
  at::Tensor kk, inverse, through;                  // DeltaTriangles and w (N, C, K); undefined without corrections
  at::Tensor offset, key_to_end;                    // u (N, C, V), or D without corrections; F k (N, C, K)

  Chunks(const DeltaPart& of, bool with_output)
      : part(of),
        corrects(of.corrects()),
        query(chunks_of(part.keys_of(part.in.query), part), corrects, 1 / std::sqrt(static_cast<double>(part.size()))),
        key(chunks_of(part.keys_of(part.in.key), part), corrects, 1) {
    const int64_t count = part.count();
    sum = at::empty({count, kDeltaChunk}, part.options().dtype(at::kDouble));
    for (at::Tensor* tensor : {&from_begin, &to_end, &beta}) {
      *tensor = at::empty({count, kDeltaChunk}, part.options());
    }
    begin = at::empty({count, kDeltaChunk}, part.options().dtype(at::kInt));
    launch("gated_delta_rule decays", sum, [&](const DeltaLaunches& kernels) {
      return kernels.decays(part.layout, elements<float>(part.in.decay), elements<float>(part.in.beta), decays());
    });
    if (corrects || with_output) {
      compute_triangles(with_output);
    }
    offset = chunks_of(part.values_of(part.in.value), part).mul_(beta.unsqueeze(-1));
    offset = corrects ? at::bmm(inverse, offset) : offset;
    key_to_end = scaled(key.x, to_end);
  }

  void compute_triangles(bool with_output) {
    const auto triangle = [&] { return at::empty({part.count(), kDeltaChunk, kDeltaChunk}, part.options()); };
    qk = with_output ? times_transposed(query.x, key.x) : at::Tensor();
    mix = with_output ? triangle() : at::Tensor();
    kk = corrects ? times_transposed(key.x, key.x) : at::Tensor();
    inverse = corrects ? triangle() : at::Tensor();
    const at::Tensor weights = corrects ? triangle() : at::Tensor();
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
    if (corrects) {
      const int64_t stacked = part.layout.group * kDeltaChunk;
      through = at::bmm(weights.view({-1, stacked, kDeltaChunk}), key.x).view({part.count(), kDeltaChunk, part.size()});
    }
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
    if (corrects) {
      report_attention(4.0 * static_cast<double>(part.count() * kDeltaChunk * part.size() * part.value_size()));
    }
    launch("gated_delta_rule scan", sum, [&](const DeltaLaunches& kernels) {
      DeltaScan whole = call;
      whole.from_begin = elements<float>(from_begin);
      whole.size = part.size();
      whole.value_size = part.value_size();
      return kernels.scan(part.layout, whole);
    });
  }
  Scanned forward(bool with_output) const {
    const at::Tensor& initial = part.in.initial_state;
    const at::Tensor start = initial.defined() ? part.states_of(initial).contiguous() : initial;
    Scanned result{.last = final_states()};
    DeltaScan call{.start = elements<float>(start), .last = elements<float>(result.last)};
    at::Tensor added;
    if (corrects) {
      result.corrections = with_output ? at::empty_like(offset) : at::Tensor();
      result.states = with_output ? states() : at::Tensor();
      call.left = elements<float>(through);
      call.right = elements<float>(key_to_end);
      call.offset = elements<float>(offset);
      call.x = elements<float>(result.corrections);
    } else {
      added = transposed_times(key_to_end, offset);
      result.corrections = offset;
      result.states = with_output ? added : at::Tensor();
      call.added = elements<float>(added);
    }
    call.states = elements<float>(result.states);
    scan(call);
    return result;
  }
  // Needs outputs. `dlast` may be undefined: zero.
  Scanned backward(const at::Tensor& doutput, const at::Tensor& dlast) const {
    const at::Tensor from_outputs = transposed_times(mix, doutput);  // of D
    Scanned result{
        .corrections = corrects ? at::empty_like(from_outputs) : from_outputs,
        .states = transposed_times(scaled(query.x, from_begin), doutput),
        .last = final_states()};
    DeltaScan call{
        .start = elements<float>(dlast),
        .states = elements<float>(result.states),
        .last = elements<float>(result.last),
        .reverse = true,
        .added = elements<float>(result.states)};
    if (corrects) {
      call.left = elements<float>(key_to_end);
      call.right = elements<float>(through);
      call.offset = elements<float>(from_outputs);
      call.x = elements<float>(result.corrections);
    }
    scan(call);
    if (!corrects) {
      result.corrections.baddbmm_(key_to_end, result.states);
    }
    return result;
  }
};

struct Results {
  at::Tensor output, final_state;
};

void forward_of(const DeltaPart& part, const Results& results) {
  const bool with_output = results.output.defined();
  const Chunks chunks(part, with_output);
  const Scanned scanned = chunks.forward(with_output);
  part.states_of(results.final_state).copy_(scanned.last);
  if (with_output) {
    at::Tensor output = at::bmm(chunks.scaled(chunks.query.x, chunks.from_begin), scanned.states);  // E q S
    output.baddbmm_(chunks.mix, scanned.corrections);
    const at::Tensor to = part.values_of(results.output);
    to.copy_(output.view(to.sizes()));
  }
}

// The names are those of gradient.inl; `gradients` are padded tensors in the order of the inputs.
void backward_of(
    const DeltaPart& part,
    const at::Tensor& given,
    const at::Tensor& dfinal,
    const std::vector<at::Tensor>& gradients) {
  const bool corrects = part.corrects();
  const Chunks chunks(part, /*with_output=*/true);
  const Scanned scanned = chunks.forward(/*with_output=*/true);
  const at::Tensor doutput = chunks_of(part.values_of(given), part);
  const at::Tensor dlast = dfinal.defined() ? part.states_of(dfinal).contiguous() : dfinal;
  const Scanned reversed = chunks.backward(doutput, dlast);
  if (gradients[5].defined()) {
    part.states_of(gradients[5]).copy_(reversed.last);
  }

  const at::Tensor &states = scanned.states, &corrections = scanned.corrections, &dstates = reversed.states;
  const at::Tensor begin = chunks.from_begin.unsqueeze(-1), end = chunks.to_end.unsqueeze(-1);
  const at::Tensor dright = corrects ? transposed_times(chunks.inverse, reversed.corrections) : reversed.corrections;
  const at::Tensor wanted = chunks_of(part.values_of(part.in.value), part);
  const at::Tensor dwanted = dright * chunks.beta.unsqueeze(-1);
  const at::Tensor dvalue = part.values_of(gradients[2]);
  dvalue.copy_(dwanted.view(dvalue.sizes()));
  // Through the states of queries and keys: for each value head, (rows heads chunks, group, C, K).
  const auto in_groups = [&](const at::Tensor& x) { return x.view({-1, part.layout.group, kDeltaChunk, part.size()}); };
  const at::Tensor queries = chunks.query.x.unsqueeze(1), keys = chunks.key.x.unsqueeze(1);
  const at::Tensor dquery_begin = in_groups(times_transposed(doutput, states).mul_(begin));
  at::Tensor dkey_states = in_groups(times_transposed(corrections, dstates).mul_(end));
  at::Tensor through_begin = row_dots(dquery_begin, queries);
  const at::Tensor through_end = row_dots(dkey_states, keys);
  const at::Tensor through_whole = dots(states, dstates).mul_(chunks.from_begin.select(1, kDeltaChunk - 1));
  if (corrects) {
    wanted.sub_(at::bmm(chunks.scaled(chunks.key.x, chunks.from_begin), states));  // value - E k S
    const at::Tensor dkey_begin = in_groups(times_transposed(dwanted, states).mul_(begin));
    through_begin.sub_(row_dots(dkey_begin, keys));
    dkey_states.sub_(dkey_begin);
  }
  const at::Tensor dbeta_direct = row_dots(dright, wanted), dmix = times_transposed(doutput, corrections);
  const at::Tensor outer = corrects ? times_transposed(dright, corrections) : at::Tensor();
  const at::Tensor dqk = at::empty_like(chunks.qk), dkk = corrects ? at::empty_like(chunks.kk) : at::Tensor();
  launch("gated_delta_rule backward", dmix, [&](const DeltaLaunches& kernels) {
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

  at::Tensor dquery = dquery_begin.sum(1), dkey = dkey_states.sum(1);
  dquery.baddbmm_(dqk, chunks.key.x);
  dkey.baddbmm_(dqk.transpose(1, 2), chunks.query.x);
  if (corrects) {
    dkey.baddbmm_(dkk, chunks.key.x).baddbmm_(dkk.transpose(1, 2), chunks.key.x);
  }
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
      .cumulative_lengths = in.cumulative_lengths,
      .update = in.update};
}

DeltaNeeds forward_needs(const GatedDeltaInputs& in) {
  const int64_t size = in.query.size(3), value_size = in.value.size(3), states = size * value_size / kDeltaChunk;
  return {4 * (size + value_size + kDeltaChunk) + states, 4 * size + 3 * kDeltaChunk};
}
DeltaNeeds backward_needs(const GatedDeltaInputs& in) {
  const int64_t size = in.query.size(3), value_size = in.value.size(3), states = size * value_size / kDeltaChunk;
  return {8 * size + 10 * value_size + 6 * kDeltaChunk + 2 * states, 8 * size + 4 * kDeltaChunk};
}

}  // namespace

bool supports_gated_delta(const GatedDeltaInputs& in) {
  return supports(in.query) && in.query.numel() > 0 && in.value.numel() > 0 && in.query.size(1) >= kFewestDeltaTokens &&
         (in.update == StateUpdate::add || in.query.size(3) <= kMostDeltaSize);
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
  for_delta_parts(
      in, tokens, forward_needs(in), temporary_bytes, [&](const DeltaPart& part) { forward_of(part, results); });
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
  for_delta_parts(in, tokens, backward_needs(in), temporary_bytes, [&](const DeltaPart& part) {
    backward_of(part, incoming, dfinal_state, gradients);
  });
  for (size_t i = 0; i < 5; ++i) {
    gradients[i] = gradients[i].narrow(1, 0, tokens).contiguous();
  }
  return gradients;
}

}  // namespace lehr::ops::cuda
