// Tokens to their experts and back. No backward pass here can be differentiated again, on any device: it throws a usage
// error under create_graph.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Where the copies of tokens stand once they are sorted by expert. N tokens, k choices each, E experts.
struct TokenPermutation {
  at::Tensor order;    ///< (N*k) int64: the copy (token * k + choice) that stands at each sorted place.
  at::Tensor inverse;  ///< (N*k) int64: the sorted place of each copy.
  at::Tensor counts;   ///< (E) int64: copies an expert gets, on the device.
  at::Tensor ends;     ///< (E) int32: cumulative counts, as grouped_linear takes them.
};

/// Sorts the choices (N, k) int64 by expert; copies of one expert keep the order of their tokens. No value is read back
/// to the host.
TokenPermutation sort_by_expert(const at::Tensor& selected_experts, int64_t num_experts);

/// Copies of the rows of tokens (N, H) in sorted order, (N*k, H). Backward adds a token's copies in the order of its
/// choices, so results do not depend on threads.
at::Tensor permute_tokens(const at::Tensor& tokens, const TokenPermutation& permutation);

/// Rows (M, H) in sorted order, each back in its own place. For one choice a token it undoes permute_tokens.
at::Tensor unpermute_rows(const at::Tensor& sorted, const TokenPermutation& permutation);

/// The weighted sum of each token's k results: sorted (N*k, H), weights (N, k) of the same type; gives (N, H).
at::Tensor combine_tokens(const at::Tensor& sorted, const at::Tensor& weights, const TokenPermutation& permutation);

}  // namespace lehr::ops
