#include "lehr/shard/context_delta.h"

#include <algorithm>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/gated_delta_rule/gated_delta_rule.h"
#include "lehr/shard/context_borders.h"

namespace lehr::shard {

namespace {
using ops::GatedDeltaInputs;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The identity as a state, (rows, Hv, K, K).
at::Tensor identity_state(const GatedDeltaInputs& in) {
  const int64_t size = in.key.size(3);
  return at::eye(size, in.decay.options()).expand({in.key.size(0), in.value.size(2), size, size});
}

at::Tensor zero_values(const GatedDeltaInputs& in) {
  auto shape = in.value.sizes().vec();
  shape[3] = in.key.size(3);
  return at::zeros(shape, in.value.options());
}

// Returns (B, A) of each of this rank's chunks, (2 B, Hv, K, V + K): the final states of its values from zero, and of
// no values from the identity. Columns of a state do not mix.
at::Tensor maps_of(GatedDeltaInputs in) {
  const at::Tensor identity = identity_state(in);
  auto shape = identity.sizes().vec();
  shape[3] = in.value.size(3);
  in.initial_state = at::cat({at::zeros(shape, identity.options()), identity}, -1);
  in.value = at::cat({in.value, zero_values(in)}, -1);
  return ops::gated_delta_final_state(in);
}

// Returns the states before this rank's chunks. `continues` (chunks, B or 1) is 0 where a document begins.
at::Tensor compose_states(const at::Tensor& maps, const at::Tensor& continues, int64_t size, const mesh::Group& group) {
  const at::Tensor all = gather_chunks(maps, group);  // (chunks, B, Hv, K, V + K)
  const int64_t value_size = all.size(-1) - size;
  std::vector<at::Tensor> states{at::zeros_like(all[0].narrow(-1, 0, value_size))};
  for (int64_t chunk = 1; chunk < all.size(0); ++chunk) {
    const at::Tensor before = all[chunk - 1];
    const at::Tensor after =
        before.narrow(-1, 0, value_size) + at::matmul(before.narrow(-1, value_size, size), states.back());
    states.push_back(after * continues[chunk].view({-1, 1, 1, 1}));
  }
  return own_chunks(states, group);
}

// Returns the gradients of the states after this rank's chunks. `maps` has the gradients of the states before chunks
// through their outputs alone, and A.
at::Tensor compose_gradients(
    const at::Tensor& maps, const at::Tensor& continues, int64_t size, const mesh::Group& group) {
  const at::Tensor all = gather_chunks(maps, group);  // (chunks, B, Hv, K, V + K)
  const int64_t value_size = all.size(-1) - size, chunks = all.size(0);
  std::vector<at::Tensor> gradients(static_cast<size_t>(chunks), at::zeros_like(all[0].narrow(-1, 0, value_size)));
  for (int64_t chunk = chunks - 1; chunk > 0; --chunk) {
    const at::Tensor own = all[chunk];
    const at::Tensor before =
        own.narrow(-1, 0, value_size) +
        at::matmul(own.narrow(-1, value_size, size).transpose(-2, -1), gradients[static_cast<size_t>(chunk)]);
    gradients[static_cast<size_t>(chunk) - 1] = before * continues[chunk].view({-1, 1, 1, 1});
  }
  return own_chunks(gradients, group);
}

struct ContextDelta : AutogradFunction<ContextDelta> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value,
      const at::Tensor& decay,
      const at::Tensor& beta,
      const at::Tensor& continues,
      const std::optional<at::Tensor>& lengths,
      const mesh::Group* group,
      ops::StateUpdate update) {
    GatedDeltaInputs in{query, key, value, decay, beta, {}, lengths.value_or(at::Tensor()), update};
    in.initial_state = compose_states(maps_of(in), continues, key.size(3), *group);
    in.save(ctx, {continues});
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    return ops::gated_delta_rule(in).output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const OperatorScope scope(OperatorKind::attention, "lehr::context_gated_delta_backward");
    ops::refuse_double_backward("linear attention under context parallelism");
    const auto& group = *reinterpret_cast<const mesh::Group*>(ctx->saved_data["group"].toInt());
    const auto saved = ctx->get_saved_variables();
    const GatedDeltaInputs in = GatedDeltaInputs::saved(ctx, saved);
    variable_list gradients =
        ops::gated_delta_rule_backward(in, grads[0], gradients_after(in, grads[0], saved.back(), group));
    gradients[5] = at::Tensor();  // of the states before the chunks, which passed through compose_gradients
    gradients.resize(9);
    return gradients;
  }

  // Returns the gradients of the states after this rank's chunks. Without values, outputs from the identity are the
  // rows Q with output = Q S + (what does not depend on the state S before the chunk).
  static at::Tensor gradients_after(
      const GatedDeltaInputs& in, const at::Tensor& doutput, const at::Tensor& continues, const mesh::Group& group) {
    GatedDeltaInputs linear = in;
    linear.value = zero_values(in);
    linear.initial_state = identity_state(in);
    const ops::GatedDelta rows = ops::gated_delta_rule(linear);
    const auto wide = in.decay.scalar_type();
    const at::Tensor before = at::matmul(  // (2 B, Hv, K, V)
        rows.output.to(wide).permute({0, 2, 3, 1}),
        doutput.to(wide).transpose(1, 2));
    return compose_gradients(at::cat({before, rows.final_state}, -1), continues, in.key.size(3), group);
  }
};

// The documents and padding of rows of one chunk each.
ops::AttentionMask mask_of_chunks(const ops::AttentionMask& mask, int64_t batch) {
  const auto rows = [&](const at::Tensor& tensor) {
    return tensor.defined() ? rows_of_chunks(tensor.expand({batch, -1})) : tensor;
  };
  return {
      .causal = mask.causal,
      .document_ids = rows(mask.document_ids),
      .key_padding = rows(mask.key_padding),
      .allowed = mask.allowed,
      .bias = mask.bias};
}

// The three streams of rows of one chunk each, after their convolutions.
std::array<at::Tensor, 3> convolved(
    const nn::LinearAttentionStreams& streams,
    const at::Tensor& lengths,
    const at::Tensor& continued,
    const mesh::Group& group) {
  const int64_t seen = streams.weights[0].size(2) - 1;
  std::array<at::Tensor, 3> heads;
  std::vector<at::Tensor> tails;  // (2 B, N, channels), for one message
  std::vector<int64_t> widths;
  for (size_t i = 0; i < heads.size(); ++i) {
    heads[i] = rows_of_chunks(streams.heads[i]);
    const int64_t size = std::min(seen, heads[i].size(1));
    tails.push_back(heads[i].narrow(1, heads[i].size(1) - size, size).flatten(2));
    widths.push_back(tails[i].size(2));
  }
  std::vector<at::Tensor> before(3);
  if (seen > 0) {
    before = tokens_before(at::cat(tails, -1), continued, group).split_with_sizes(widths, -1);
  }
  for (size_t i = 0; i < heads.size(); ++i) {
    auto shape = heads[i].sizes().vec();
    shape[1] = seen;
    const at::Tensor own = seen > 0 ? before[i].reshape(shape) : at::Tensor();
    heads[i] = ops::causal_conv(heads[i], streams.weights[i], lengths, own, streams.biases[i]);
  }
  return heads;
}

// One tap has the placements of all, and the rule states its own.
at::Tensor state_placements(OperatorWatch& watch, const nn::LinearAttentionStreams& streams, const mesh::Group& group) {
  std::array<at::Tensor, 3> heads;
  for (size_t i = 0; i < heads.size(); ++i) {
    heads[i] = ops::causal_conv(streams.heads[i], streams.weights[i].narrow(2, 0, 1), {}, {}, streams.biases[i]);
  }
  const Placement row = Placement::shard(1);
  const at::Tensor output = watch.state(
      {.name = "context_gated_delta",
       .ranks = group.ranks(),
       .inputs =
           {{"q", heads[0], row},
            {"k", heads[1], row},
            {"v", heads[2], row},
            {"decay", streams.decay, row},
            {"beta", streams.beta, row}},
       .gives = row,
       .shape = heads[2].sizes().vec(),
       .dtype = heads[2].scalar_type(),
       .like = 2});
  return nn::add_skip(output, heads[2], streams.skip);
}
}  // namespace

at::Tensor context_gated_delta(
    const nn::LinearAttentionStreams& streams, const ops::AttentionMask& mask, const mesh::Group& group) {
  if (OperatorWatch* watch = operator_watch()) {
    return state_placements(*watch, streams, group);
  }
  check_two_chunks(streams.decay.size(1));
  const int64_t batch = streams.decay.size(0), chunk = streams.decay.size(1) / 2;
  const int64_t seen = streams.weights[0].size(2) - 1;  // tokens before a token that its convolutions see
  const at::Tensor lengths = nn::linear_attention_sequences(mask_of_chunks(mask, batch), 2 * batch, chunk);
  const at::Tensor continued = continued_tokens(mask, chunk, std::max<int64_t>(seen, 1), streams.decay.device(), group);
  const auto heads = convolved(streams, lengths, continued, group);
  const OperatorScope scope(OperatorKind::attention, "lehr::context_gated_delta");
  const at::Tensor output = ContextDelta::apply(
      heads[0],
      heads[1],
      heads[2],
      rows_of_chunks(streams.decay),
      rows_of_chunks(streams.beta),
      continued.select(2, -1).to(streams.decay.scalar_type()),
      lengths.defined() ? std::optional(lengths) : std::nullopt,
      &group,
      streams.update);
  return nn::add_skip(output, heads[2], streams.skip).unflatten(0, {batch, 2}).flatten(1, 2);
}

}  // namespace lehr::shard
