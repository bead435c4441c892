// Fused language-model loss: linear layer and cross-entropy, without storing logits.
#pragma once

#include <optional>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns the negative log-likelihood of each label under softmax(hidden weight^T); 0 where the label is ignore_index.
///
/// hidden is (N, H), weight (V, H) of the same floating type, labels (N) int64; the result is (N), float32 (float64 for
/// float64). Tokens are processed in chunks whose logits fit kLogitsBytes (kGpuLogitsBytes on a GPU), so the (N, V)
/// logits are never stored, as in Liger Kernel (https://arxiv.org/abs/2410.10989). Ignored tokens cost nothing.
///
/// If gradients are needed, forward computes them too, for an incoming gradient of 1 per token: three matmuls per
/// training step, where recomputing the logits would take four. Backward then only scales them, as long as all counted
/// tokens have the same incoming gradient (any sum or mean). Other incoming gradients are exact too, but the gradient
/// of weight is computed a second time. Wgrad is never deferred (ops/weight_gradients.h), since it is computed in
/// forward. Without gradients (at::NoGradGuard), only the forward matmul runs. In bfloat16 the gradient of weight is
/// rounded to bfloat16 once per chunk. Throws a usage error for a label outside [0, V) that is not ignore_index, and
/// for shapes that do not match.
///
/// With a softcap, logits x are replaced by softcap tanh(x / softcap) (ops/logit_softcap.h). Then a chunk takes twice
/// the memory, for the derivatives.
///
/// On a GPU the host never synchronizes to read labels or gradients. Ignored tokens are computed like others and yield
/// zeros (if their hidden states are finite), a label out of range yields NaN, and the gradient of a sum or mean is
/// recognized by its stride of 0. If a copy has lost that stride, the gradient of weight is computed a second time.
at::Tensor linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& labels,
    int64_t ignore_index = -100,
    std::optional<double> softcap = {});

/// Writes -log softmax(logits)[labels] to losses (N). If `gradient`, overwrites logits (N, V) by softmax(logits) -
/// one_hot(labels), with row n multiplied by row_scale[n] if row_scale is defined. losses and row_scale are in the wide
/// type. Loss and gradient are zero for the label -1, and NaN for other labels out of range. Fused on the CPU
/// and on a GPU with kernels.
void cross_entropy_(
    const at::Tensor& logits,
    const at::Tensor& labels,
    const at::Tensor& losses,
    bool gradient,
    const at::Tensor& row_scale = {});

namespace reference {
/// Holds all logits.
at::Tensor linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& labels,
    int64_t ignore_index,
    std::optional<double> softcap = {});
}  // namespace reference

}  // namespace lehr::ops
