#include "lehr/shard/context_attention.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/mesh/collectives.h"
#include "lehr/shard/context_borders.h"
#include "lehr/shard/context_chunks.h"

namespace lehr::shard {

void check_context_attention(
    const at::Tensor& q, const at::Tensor& k, const ops::AttentionMask& mask, const ops::AttentionOptions& options) {
  require(
      !mask.allowed.defined() && !mask.bias.defined(),
      "context parallelism: attention_mask.allowed and .bias are not supported; use document_ids and key_padding");
  require(
      q.size(1) == k.size(1),
      "context parallelism: {} queries and {} keys; key/value caches are not supported, generate with one cp rank",
      q.size(1),
      k.size(1));
  check_two_chunks(q.size(1));
  require(!options.window || mask.causal, "attention: window: needs causal order; leave mask.causal true");
}

Statement context_attention_statement(
    const char* name,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group) {
  const Placement row = Placement::shard(1);
  return {
      .name = name,
      .ranks = group.ranks(),
      .inputs =
          {{"q", q, row},
           {"k", k, row},
           {"v", v, row},
           {"document_ids", mask.document_ids, row},
           {"key_padding", mask.key_padding, row},
           {"sinks", options.sinks, Placement::replicate()}},
      .gives = row,
      .shape = {q.size(0), q.size(1), q.size(2), v.size(3)},
      .dtype = q.scalar_type()};
}

at::Tensor gather_row_mask(const at::Tensor& mask, const mesh::Group& group) {
  if (!mask.defined()) {
    return {};
  }
  const at::NoGradGuard no_grad;
  if (mask.scalar_type() == at::kBool) {  // not every transport supports bool
    return mesh::all_gather(mask.to(at::kByte), group, 1).to(at::kBool);
  }
  return mesh::all_gather(mask, group, 1);
}

namespace {
// Returns positions [begin, end) of a mask (B or 1, T); undefined if the mask is.
at::Tensor part_of_row(const at::Tensor& mask, int64_t begin, int64_t end) {
  return mask.defined() ? mask.narrow(1, begin, end - begin) : mask;
}

// Non-causal attention: the order of keys does not matter, except that ops::attention takes the documents of queries
// from the last keys. So the keys are rotated until this rank's are last.
at::Tensor attend_to_all(
    const at::Tensor& q,
    const at::Tensor& gathered,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group) {
  const auto own_last = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.roll(-(group.rank() + 1) * q.size(1), 1) : tensor;
  };
  const at::Tensor keys = own_last(gathered);
  return ops::attention(
      q,
      keys.narrow(-1, 0, q.size(3)),
      keys.narrow(-1, q.size(3), keys.size(3) - q.size(3)),
      {.causal = false,
       .document_ids = own_last(gather_row_mask(mask.document_ids, group)),
       .key_padding = own_last(gather_row_mask(mask.key_padding, group))},
      options);
}
}  // namespace

at::Tensor all_gather_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group) {
  if (OperatorWatch* watch = operator_watch()) {
    return watch->state(context_attention_statement("all_gather_attention", q, k, v, mask, options, group));
  }
  check_context_attention(q, k, mask, options);
  const at::Tensor gathered = mesh::all_gather(at::cat({k, v}, -1), group, 1);  // (B, S, Hkv, D + Dv)
  if (!mask.causal) {
    return attend_to_all(q, gathered, mask, options, group);
  }
  const auto in_order = [&](const at::Tensor& tensor) {
    return tensor.defined() ? in_order_of_positions(tensor, 1, group.size()) : tensor;
  };
  const at::Tensor keys = in_order(gathered);  // (B, S, Hkv, D + Dv), in order of positions
  const at::Tensor documents = in_order(gather_row_mask(mask.document_ids, group));
  const at::Tensor padding = in_order(gather_row_mask(mask.key_padding, group));
  const int64_t chunk = q.size(1) / 2;
  std::vector<at::Tensor> outputs;
  for (const int64_t half : {0, 1}) {
    // Keys after a chunk are masked for all its queries, and so are those before its first window: leave them out.
    const int64_t first = context_chunk(half, group.rank(), group.size()) * chunk;
    const int64_t begin = options.window ? std::max<int64_t>(0, first + 1 - *options.window) : 0;
    const int64_t end = first + chunk;
    const at::Tensor seen = keys.narrow(1, begin, end - begin);
    outputs.push_back(ops::attention(
        q.narrow(1, half * chunk, chunk),
        seen.narrow(-1, 0, q.size(3)),
        seen.narrow(-1, q.size(3), v.size(3)),
        {.causal = true,
         .document_ids = part_of_row(documents, begin, end),
         .key_padding = part_of_row(padding, begin, end),
         .allowed = {},
         .bias = {}},
        options));
  }
  return at::cat(outputs, 1);
}

}  // namespace lehr::shard
