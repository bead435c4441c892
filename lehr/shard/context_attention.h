// Attention over rows whose positions are spread over ranks as context_parallel.h cuts them.
//
// Arguments and results are those of ops::attention for this rank's positions (queries, keys and values of the same
// ones; document_ids and key_padding too), and so are the gradients. Explicit masks and caches are refused. All ranks
// of the group must call, with the same shapes and options.
#pragma once

#include "lehr/base/operator_watch.h"
#include "lehr/mesh/group.h"
#include "lehr/ops/attention.h"

namespace lehr::shard {

/// Gathers keys and values in one collective; backward scatters the sums of their gradients. A rank's two chunks each
/// attend to the keys before their end.
at::Tensor all_gather_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group);

/// Keys and values go around the ranks, one step ahead of the computation; results are merged by their log-sums (Liu et
/// al., https://arxiv.org/abs/2310.01889). In backward they go around once more, and their gradients behind them.
at::Tensor ring_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group);

/// Throws a usage error for a call that the functions above do not know.
void check_context_attention(
    const at::Tensor& q, const at::Tensor& k, const ops::AttentionMask& mask, const ops::AttentionOptions& options);

/// What the functions above say of themselves to a watch: all of rows is shard(1).
Statement context_attention_statement(
    const char* name,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group);

/// The ranks' parts one behind the other along `dim`, as a gather gives them, by their positions.
at::Tensor in_order_of_positions(const at::Tensor& gathered, int64_t dim, int64_t ranks);

/// The ranks' row masks (B or 1, T) one behind the other; undefined if `mask` is. Without a gradient.
at::Tensor gather_row_mask(const at::Tensor& mask, const mesh::Group& group);

}  // namespace lehr::shard
