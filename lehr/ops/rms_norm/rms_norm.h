// RMSNorm (https://arxiv.org/abs/1910.07467), alone or fused with the addition to the residual stream.
#pragma once

#include <tuple>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Factor of the normalized value.
enum class NormWeight {
  plain,          ///< The weight, which starts at 1. As in Hugging Face's Llama and Qwen3, the normalized value is
                  ///< first rounded to the type of x.
  zero_centered,  ///< 1 + weight, which starts at 0, so that weight decay pulls to the identity (Gemma, Qwen3-Next).
                  ///< One rounding, at the end.
};

/// Returns y = x / sqrt(mean(x^2) + eps) * weight over the last dimension.
///
/// x is (..., C), weight (C), both of one floating type; y has x's shape and type. Statistics are float32 (float64 for
/// float64). Differentiable with respect to x and weight; the gradient of weight does not depend on the number of
/// threads. Throws a usage error if shapes or types do not match.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind = NormWeight::plain);

/// Adds the output of a sub-block to the residual stream and normalizes the sum, in one pass over memory. Returns sum =
/// hidden_states + branch and normed = rms_norm(sum, weight, eps, kind), with the same bits as the two calls.
///
/// hidden_states and branch are (..., C), weight (C), all of one floating type. If branch is undefined, sum is
/// hidden_states itself and must not be written to. Backward adds the gradients of sum and normed in one pass; the
/// result is the gradient of both hidden_states and branch. Throws a usage error if shapes or types do not match.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& hidden_states,
    const at::Tensor& branch,
    const at::Tensor& weight,
    double eps,
    NormWeight kind = NormWeight::plain);

namespace reference {
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind = NormWeight::plain);

/// An undefined branch adds nothing.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& hidden_states,
    const at::Tensor& branch,
    const at::Tensor& weight,
    double eps,
    NormWeight kind = NormWeight::plain);
}  // namespace reference

}  // namespace lehr::ops
