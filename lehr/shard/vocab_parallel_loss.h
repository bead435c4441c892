// Vocabulary-parallel language-model loss: linear layer and cross-entropy fused, without storing logits.
#pragma once

#include <optional>

#include "lehr/mesh/group.h"
#include "lehr/shard/vocabulary_part.h"

namespace lehr::shard {

/// Returns the negative log-likelihood of each label under softmax(hidden W^T), where `weight` (rows of `part`, H) has
/// some rows of W; 0 where the label is ignore_index. hidden (N, H) and labels (N) int64 are the same on all ranks of
/// the group, and so is the result (N), float32 (float64 for float64): invariant. The gradient of hidden is partial,
/// that of weight is each rank's own.
///
/// Runs two small all-reduces per call: the maximum logit per token, then the sum of exponentials and the label's
/// logit. Logits are computed in chunks and never stored, not even a rank's share. Backward recomputes them once for
/// both gradients; wgrad is never deferred (ops/weight_gradients.h). Computing gradients in forward, as
/// ops::linear_cross_entropy does, would need the all-reduces of a chunk before the next chunk. In bfloat16, sums are
/// float32, and the gradient of weight is rounded to bfloat16 once per chunk. Throws a usage error for a label outside
/// the vocabulary, and for shapes that do not match. On a GPU the host reads no label: ignored tokens are computed too,
/// and a label outside the vocabulary makes its loss NaN. `softcap` is that of ops::linear_cross_entropy.
at::Tensor vocab_parallel_linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& labels,
    const VocabularyPart& part,
    const mesh::Group& group,
    int64_t ignore_index = -100,
    std::optional<double> softcap = {});

}  // namespace lehr::shard
