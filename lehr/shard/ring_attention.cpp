// Ring attention (https://arxiv.org/abs/2310.01889).
#include <array>

#include "lehr/base/autograd_function.h"
#include "lehr/meter/operator_profile.h"
#include "lehr/ops/attention/attention_lse.h"
#include "lehr/ops/attention/attention_sequences.h"
#include "lehr/ops/autograd.h"
#include "lehr/shard/context_attention.h"
#include "lehr/shard/context_parallel.h"

namespace lehr::shard {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A pending send to the next rank and a pending receive from the previous one.
struct Hop {
  at::Tensor arriving;
  mesh::Pending sent;
  mesh::Pending received;

  at::Tensor wait() {
    received.wait();
    sent.wait();
    return std::move(arriving);
  }
};

Hop pass_on(const at::Tensor& tensor, const mesh::Group& group) {
  const int64_t next = (group.rank() + 1) % group.size();
  const int64_t previous = (group.rank() + group.size() - 1) % group.size();
  Hop hop{.arriving = at::empty_like(tensor), .sent = {}, .received = {}};
  if (group.rank() % 2 == 0) {
    hop.sent = group.start_send(tensor, next);
    hop.received = group.start_receive(hop.arriving, previous);
  } else {  // odd ranks receive first: no deadlock on transports whose operations block
    hop.received = group.start_receive(hop.arriving, previous);
    hop.sent = group.start_send(tensor, next);
  }
  return hop;
}

// Arguments of a call that have no gradients.
struct Ring {
  const mesh::Group* group = nullptr;
  bool causal = true;
  ops::AttentionOptions options;  // without sinks
  at::Tensor documents;           // (B, T of all ranks), in order of ranks
  at::Tensor padding;

  // Returns the rank whose keys this rank has at a step.
  int64_t source(int64_t step) const { return (group->rank() + group->size() - step) % group->size(); }

  // Calls work(query, key, stretch) for each pair of a chunk of this rank's queries and a chunk of rank `from`'s keys
  // that is not fully masked. `query` and `key` are the chunks' first local positions.
  template <class Work>
  void for_each_pair(int64_t from, int64_t chunk, const Work& work) const {
    for (const int64_t query_half : {0, 1}) {
      for (const int64_t key_half : {0, 1}) {
        const auto part_of = [&](const at::Tensor& mask, int64_t rank, int64_t half) {
          return mask.defined() ? mask.narrow(1, (2 * rank + half) * chunk, chunk) : mask;
        };
        const ops::AttentionStretch stretch{
            .first_query = context_chunk(query_half, group->rank(), group->size()) * chunk,
            .first_key = context_chunk(key_half, from, group->size()) * chunk,
            .causal = causal,
            .query_documents = part_of(documents, group->rank(), query_half),
            .key_documents = part_of(documents, from, key_half),
            .key_padding = part_of(padding, from, key_half)};
        if (stretch.sees_any(chunk, chunk, options.window)) {
          work(query_half * chunk, key_half * chunk, stretch);
        }
      }
    }
  }
};

ops::AttentionPart forward_around(const Ring& ring, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t chunk = q.size(1) / 2, size = q.size(3);
  std::array<ops::AttentionPart, 2> parts;  // per chunk of queries: output (B, C, Hq, Dv) and log-sum-exp (B, C, Hq)
  for (auto& part : parts) {
    part = ops::empty_attention_part(q.narrow(1, 0, chunk), v.size(3));
  }
  at::Tensor keys = at::cat({k, v}, -1);  // (B, T/cp, Hkv, D + Dv): one message per step
  for (int64_t step = 0; step < ring.group->size(); ++step) {
    const bool more = step + 1 < ring.group->size();
    Hop hop = more ? pass_on(keys, *ring.group) : Hop{};  // overlaps with the attention below
    ring.for_each_pair(ring.source(step), chunk, [&](int64_t query, int64_t key, const ops::AttentionStretch& stretch) {
      const at::Tensor seen = keys.narrow(1, key, chunk);
      auto& part = parts[query > 0 ? 1 : 0];
      part = ops::merge(
          part,
          ops::attention_part(
              q.narrow(1, query, chunk),
              seen.narrow(-1, 0, size),
              seen.narrow(-1, size, v.size(3)),
              stretch,
              ring.options));
    });
    if (more) {
      keys = hop.wait();
    }
  }
  return {.output = at::cat({parts[0].output, parts[1].output}, 1), .lse = at::cat({parts[0].lse, parts[1].lse}, 1)};
}

// Backward of the ring; `products` and `lse` are as in ops::attention_part_backward. Gradients of keys and values
// are passed on one step after the keys themselves, and each rank adds its own. After as many hops as there are ranks
// they are back at the rank that owns the keys.
ops::AttentionPartGradients backward_around(
    const Ring& ring,
    const at::Tensor& dout,
    const at::Tensor& products,
    const at::Tensor& lse,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v) {
  const int64_t chunk = q.size(1) / 2, size = q.size(3), value_size = v.size(3);
  at::Tensor keys = at::cat({k, v}, -1);
  at::Tensor dq = at::zeros(q.sizes(), lse.options());
  Hop gradients;
  for (int64_t step = 0; step < ring.group->size(); ++step) {
    const bool more = step + 1 < ring.group->size();
    Hop hop = more ? pass_on(keys, *ring.group) : Hop{};
    at::Tensor dkeys = at::zeros(keys.sizes(), lse.options());
    ring.for_each_pair(ring.source(step), chunk, [&](int64_t query, int64_t key, const ops::AttentionStretch& stretch) {
      const at::Tensor seen = keys.narrow(1, key, chunk);
      const auto mine = [&](const at::Tensor& tensor) { return tensor.narrow(1, query, chunk); };
      const auto added = ops::attention_part_backward(
          mine(dout),
          mine(products),
          mine(lse),
          mine(q),
          seen.narrow(-1, 0, size),
          seen.narrow(-1, size, value_size),
          stretch,
          ring.options);
      mine(dq).add_(added.q);
      dkeys.narrow(1, key, chunk).add_(at::cat({added.k, added.v}, -1));
    });
    if (step > 0) {
      dkeys.add_(gradients.wait());
    }
    gradients = pass_on(dkeys, *ring.group);
    if (more) {
      keys = hop.wait();
    }
  }
  const at::Tensor home = gradients.wait();  // the sum over ranks for this rank's own keys
  return {.q = dq, .k = home.narrow(-1, 0, size), .v = home.narrow(-1, size, value_size)};
}

struct RingHolder : torch::CustomClassHolder {
  explicit RingHolder(Ring r) : ring(std::move(r)) {}
  Ring ring;
};

struct RingFunction : AutogradFunction<RingFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const std::optional<at::Tensor>& sinks,
      const Ring& ring) {
    ops::AttentionPart whole = forward_around(ring, q, k, v);
    if (sinks) {
      whole = ops::with_sinks(whole, *sinks);
    }
    at::Tensor output = whole.output.to(q.scalar_type());
    context->save_for_backward({q, k, v, output, whole.lse, sinks.value_or(at::Tensor())});
    context->saved_data["ring"] = c10::IValue::make_capsule(c10::make_intrusive<RingHolder>(ring));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const OperatorScope scope(OperatorKind::attention, "lehr::ring_attention_backward");
    ops::refuse_double_backward("ring attention");
    const auto saved = context->get_saved_variables();
    const at::Tensor& sinks = saved[5];
    const at::Tensor& lse = saved[4];
    const auto holder = saved_object<RingHolder>(context, "ring");
    const auto type = lse.scalar_type();
    // delta = rowsum(dO * O), called D in Algorithm 2 of FlashAttention-2 (https://arxiv.org/abs/2307.08691).
    const at::Tensor products = (gradients[0].to(type) * saved[3].to(type)).sum(-1);  // (B, T, Hq)
    const auto found = backward_around(holder->ring, gradients[0], products, lse, saved[0], saved[1], saved[2]);
    at::Tensor dsinks;
    if (sinks.defined()) {
      dsinks = ops::sinks_gradient(products, lse, sinks).to(sinks.scalar_type());
    }
    return {
        found.q.to(saved[0].scalar_type()),
        found.k.to(saved[1].scalar_type()),
        found.v.to(saved[2].scalar_type()),
        dsinks,
        {}};
  }
};
}  // namespace

at::Tensor ring_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(context_attention_statement("ring_attention", q, k, v, mask, options, group));
  }
  check_context_attention(q, k, mask, options);
  const OperatorScope scope(OperatorKind::attention, "lehr::ring_attention");
  Ring ring{
      .group = &group,
      .causal = mask.causal,
      .options = options,
      .documents = gather_row_mask(mask.document_ids, group),
      .padding = gather_row_mask(mask.key_padding, group)};
  ring.options.sinks.reset();
  std::optional<at::Tensor> sinks;  // autograd functions do not accept undefined tensors
  if (options.sinks.defined()) {
    sinks = options.sinks;
  }
  return ops::without_hidden_queries(RingFunction::apply(q, k, v, sinks, ring), mask.key_padding);
}

}  // namespace lehr::shard
