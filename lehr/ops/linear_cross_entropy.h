// The language-model loss without the logits.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Negative log-likelihood of each label under softmax(hidden weight^T); 0 where the label is ignore_index.
///
/// hidden is (N, H), weight (V, H) of the same floating type, labels (N) int64; the result is (N), float32 (float64 for
/// float64). Rows are taken in chunks whose logits fit kLogitsBytes (kGpuLogitsBytes on a GPU), so the (N, V) logits
/// never exist; ignored rows cost nothing. When gradients are wanted, the forward pass already computes them for a
/// gradient of 1 at each row, which makes three matrix products for a training step where recomputing would take four.
/// The backward pass then only scales, as long as all rows that count have one incoming gradient (any sum or mean);
/// other incoming gradients are exact too, but compute the weight's part again. The weight's gradient never waits
/// (ops/weight_gradients.h): it is there after forward already, and computing it later would take the logits once more.
/// Without gradients (at::NoGradGuard) only the forward product is done. In bfloat16 the weight's gradient is rounded
/// to bfloat16 once a chunk. Throws a usage error for a label outside [0, V) that is not ignore_index, and for shapes
/// that do not match.
///
/// On a GPU the host does not wait to look at labels and gradients: ignored rows are computed like others and (if
/// their hidden states are finite) give zeros, a label that is out of range gives NaN, and a sum's or mean's gradient
/// is known by its stride of 0; where a copy of it has lost that, the weight's part is computed again.
at::Tensor linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, int64_t ignore_index = -100);

/// Memory for the logits of one chunk of rows.
constexpr int64_t kLogitsBytes = 64 << 20;
/// The same on a GPU.
constexpr int64_t kGpuLogitsBytes = 512 << 20;

}  // namespace lehr::ops
