// Attention under context parallelism: positions are sharded over ranks as context_parallel.h defines.
//
// Arguments, results and gradients are those of ops::attention, restricted to this rank's positions (queries, keys,
// values, document_ids and key_padding alike). Explicit masks and caches are refused. All ranks of the group must call,
// with the same shapes and options.
#pragma once

#include "lehr/mesh/group.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/attention/attention.h"

namespace lehr::shard {

/// All-gathers keys and values in one collective; backward reduce-scatters their gradients. Each of a rank's two chunks
/// of queries attends to the keys up to its own end.
at::Tensor all_gather_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group);

/// Ring attention (Liu et al., https://arxiv.org/abs/2310.01889): keys and values are passed from rank to rank, which
/// overlaps with computation, and partial results are merged by their log-sum-exp. Backward passes keys and values
/// around a second time, followed by their gradients.
at::Tensor ring_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group);

/// Throws a usage error for a call that the functions above do not support.
void check_context_attention(
    const at::Tensor& q, const at::Tensor& k, const ops::AttentionMask& mask, const ops::AttentionOptions& options);

/// Returns the statement of the functions above to an operator watch: every input with positions is shard(1).
Statement context_attention_statement(
    const char* name,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::AttentionMask& mask,
    const ops::AttentionOptions& options,
    const mesh::Group& group);

/// All-gathers a mask (B or 1, T) of this rank's positions, in the order of ranks; undefined if `mask` is. The result
/// has no gradient.
at::Tensor gather_row_mask(const at::Tensor& mask, const mesh::Group& group);

}  // namespace lehr::shard
