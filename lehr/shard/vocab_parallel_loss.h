// The language-model loss without the logits, where ranks have parts of the vocabulary.
#pragma once

#include <vector>

#include "lehr/base/box.h"
#include "lehr/mesh/group.h"

namespace lehr::shard {

/// The ids whose rows a rank has.
struct VocabularyPart {
  int64_t size = 0;         ///< Of the whole vocabulary.
  std::vector<Range> rows;  ///< Of this rank, in the order of its weight's rows; they may be empty.
};

/// Negative log-likelihood of each label under softmax(hidden W^T), where `weight` (rows of `part`, H) has some of the
/// rows of W; 0 where the label is ignore_index. hidden (N, H) and labels (N) int64 are the same on all ranks of the
/// group, and so is the result (N), float32 (float64 for float64): invariant. The gradient of hidden is partial, that
/// of weight each rank's own.
///
/// Two small collectives a call: the largest logit of each row, then the sum of exponentials and the label's logit.
/// Neither all logits nor all of a rank's exist at once (ops::kLogitsBytes); backward computes them again, once for
/// both gradients: the weight's never waits (ops/weight_gradients.h). In bfloat16 sums are float32, and the weight's
/// gradient is rounded to bfloat16 once a chunk. Throws a usage error for a label outside the vocabulary, and for
/// shapes that do not match.
at::Tensor vocab_parallel_linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& labels,
    const VocabularyPart& part,
    const mesh::Group& group,
    int64_t ignore_index = -100);

}  // namespace lehr::shard
