// Vocabulary-parallel distillation loss: both heads and their divergence fused, without storing logits.
#pragma once

#include "lehr/mesh/group.h"
#include "lehr/ops/linear_kl/linear_kl.h"
#include "lehr/shard/vocabulary_part.h"

namespace lehr::shard {

/// ops::linear_kl over a vocabulary whose rows are on several ranks. `weight` (rows of `part`, H) and teacher.weight
/// (the same rows, the teacher's hidden size) are some rows of both heads. hidden (N, H), teacher.hidden and labels (N)
/// int64 are the same on all ranks of the group, and so are the results (N): invariant. The gradient of hidden is
/// partial, that of weight is each rank's own.
///
/// Runs three small all-reduces per call: the maximum logits per token, the ids that have them, then the sums of
/// exponentials, of the teacher's probabilities times the distance of both logits, and the label's logit. Chunks, sums,
/// labels, GPUs and errors are treated as in vocab_parallel_linear_cross_entropy.
ops::LinearKl vocab_parallel_linear_kl(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const ops::TeacherHead& teacher,
    const at::Tensor& labels,
    const VocabularyPart& part,
    const mesh::Group& group,
    const ops::LinearKlOptions& options = {});

}  // namespace lehr::shard
