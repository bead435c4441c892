// Gated DeltaNet and Mamba-2 under context parallelism, as context_parallel.h defines it: the states that enter chunks.
//
// A chunk maps the state S before it to A S + B, with A (K, K) and B (K, V) per value head; A is zero if a document
// begins within the chunk. Each rank computes the maps of its two chunks; one all-gather of all maps, and their
// composition in order of positions, gives each chunk the state before it. Only then does the gated delta rule run,
// from this state. Backward composes in reverse order: the gradient of the state after a chunk is that of the state
// before the next one, and passes through a chunk multiplied by A^T. Another all-gather collects the last W - 1 tokens
// of all chunks, which the convolutions of width W read in the following chunks.
#pragma once

#include "lehr/mesh/group.h"
#include "lehr/nn/linear_attention.h"

namespace lehr::shard {

/// The core of linear attention for this rank's positions (streams, document_ids and key_padding alike). All ranks of
/// the group must call, with the same shapes. Throws a usage error for masks other than documents and padding.
at::Tensor context_gated_delta(
    const nn::LinearAttentionStreams& streams, const ops::AttentionMask& mask, const mesh::Group& group);

}  // namespace lehr::shard
