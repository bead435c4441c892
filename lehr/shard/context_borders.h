// Access of the chunks of context parallelism (context_chunks.h) to the tokens before them.
#pragma once

#include <vector>

#include "lehr/mesh/group.h"
#include "lehr/ops/attention/attention_options.h"

namespace lehr::shard {

/// Throws a usage error unless a rank's number of positions is even, as two chunks have.
void check_two_chunks(int64_t positions);

/// Splits this rank's positions (B, 2 C, ...) into rows of one chunk each, (2 B, C, ...).
at::Tensor rows_of_chunks(const at::Tensor& tensor);

/// All-gathers rows (2 B, ...), one for each of this rank's chunks, to (chunks, B, ...) in order of positions.
/// Differentiable.
at::Tensor gather_chunks(const at::Tensor& rows, const mesh::Group& group);

/// Returns the rows (2 B, ...) of this rank's chunks from those of all, one tensor (B, ...) per chunk.
at::Tensor own_chunks(const std::vector<at::Tensor>& of_chunks, const mesh::Group& group);

/// Returns, for each chunk of `tokens` tokens, in order of positions, and each of the `count` tokens before it, whether
/// that token belongs to the document of the chunk's first one: (chunks, B or 1, count) bool on `device`. A sequence
/// ends at padding too. Communicates if the mask has documents or padding.
at::Tensor continued_tokens(
    const ops::AttentionMask& mask, int64_t tokens, int64_t count, at::Device device, const mesh::Group& group);

/// Returns the tokens before each of this rank's chunks, (2 B, count, ...), with zeros where `continued`, the result of
/// continued_tokens() for as many tokens, is false. `tails` (2 B, N, ...) are the last N tokens of each chunk; N is
/// `count`, or the size of a chunk if that is less. Differentiable.
at::Tensor tokens_before(const at::Tensor& tails, const at::Tensor& continued, const mesh::Group& group);

}  // namespace lehr::shard
