// Permutation of tokens by expert, and its inverse, for MoE layers. Backward of these operators is not differentiable,
// on any device: it throws a usage error under create_graph.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Order of token copies, one per chosen expert, sorted by expert: N tokens, k choices per token, E experts.
struct TokenPermutation {
  at::Tensor order;    ///< (N*k) int64: the copy (token * k + choice) at each sorted position.
  at::Tensor inverse;  ///< (N*k) int64: the sorted position of each copy.
  at::Tensor counts;   ///< (E) int64: copies per expert, on the device.
  at::Tensor ends;     ///< (E) int32: cumulative counts in sorted order, as grouped_linear takes them.
};

/// Sorts the choices (N, k) int64 by expert; copies of one expert keep the order of their tokens. The host does not
/// synchronize with the device.
TokenPermutation sort_by_expert(const at::Tensor& selected_experts, int64_t num_experts);

/// Returns the rows of tokens (N, H), copied once per choice, in sorted order: (N*k, H). Backward adds a token's copies
/// in the order of its choices, so results do not depend on the number of threads.
at::Tensor permute_tokens(const at::Tensor& tokens, const TokenPermutation& permutation);

/// Reorders rows (M, H) from sorted order to the order of copies. With one choice per token it inverts permute_tokens.
at::Tensor unpermute_rows(const at::Tensor& sorted, const TokenPermutation& permutation);

/// Returns the weighted sum (N, H) of each token's k results, for sorted (N*k, H) and weights (N, k) of the same type.
at::Tensor combine_tokens(const at::Tensor& sorted, const at::Tensor& weights, const TokenPermutation& permutation);

}  // namespace lehr::ops
