// The borders of packed documents and padding in the rows of a batch.
#pragma once

#include <optional>

#include "lehr/ops/attention/attention_options.h"

namespace lehr::ops {

/// Returns AttentionMask::sequence_ends for rows with document_ids and key_padding, (B, S) each and readable by the
/// host; either may be undefined. The result is (B, M) int32 on the same device, where M is a power of two, so that few
/// shapes occur. It is undefined if both are undefined, if they are on a device that the host would have to wait for,
/// or if the visible tokens of a document are in several pieces. On meta each row is one sequence.
at::Tensor sequence_ends(const at::Tensor& document_ids, const at::Tensor& key_padding);

/// Returns the mask of rows with document_ids and key_padding, (B or 1, S) each, on `device`. Either may be undefined.
/// If the host can read them where they are now, the mask has sequence_ends.
AttentionMask row_mask(const at::Tensor& document_ids, const at::Tensor& key_padding, at::Device device);

/// Returns the cumulative lengths of the sequences of `rows` rows of `keys` tokens, one row after the other: (N + 1)
/// int32 from 0 to rows * keys, on the mask's device; a repeated number is an empty sequence. They are taken from the
/// mask, or computed from its sequence_ends or from ids and padding that the host can read. Returns an undefined tensor
/// if each row is one sequence, and nothing if the host cannot know them or documents and padding have no such form.
/// Ignores `allowed` and `bias`.
std::optional<at::Tensor> cumulative_lengths_of(const AttentionMask& mask, int64_t rows, int64_t keys);

/// Returns the mask with cumulative_lengths, if it has any, so that they are computed once for all layers of a model.
AttentionMask with_cumulative_lengths(AttentionMask mask, int64_t rows);

/// Returns the cumulative lengths of rows that are one sequence each.
at::Tensor cumulative_lengths_of_rows(int64_t rows, int64_t keys, at::Device device);

/// Returns `attended` (B, T, Hq, Dv) with zeros at queries whose own position is hidden by key_padding (B or 1, S),
/// which may be undefined. The queries are the last T positions.
at::Tensor without_hidden_queries(const at::Tensor& attended, const at::Tensor& key_padding);

}  // namespace lehr::ops
