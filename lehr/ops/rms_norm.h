// Root-mean-square normalization of rows, with a learned weight; alone, or of a residual stream in the same pass that
// adds to it.
#pragma once

#include <tuple>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// What multiplies the normalized value.
enum class NormWeight {
  plain,          ///< The weight, which starts at 1. As in Hugging Face's Llama and Qwen3, the normalized value is
                  ///< rounded to the type of x first.
  zero_centered,  ///< 1 + weight, which starts at 0, so that weight decay pulls to the identity (Gemma, Qwen3-Next).
                  ///< One rounding, at the end.
};

/// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension.
///
/// x is (..., C), weight (C), both of one floating type; y has x's shape and type. Statistics are float32 (float64 for
/// float64). Gradients flow to x and weight; the weight's is the same for any number of threads. Throws a usage
/// error if shapes or types do not match.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight kind = NormWeight::plain);

/// Adds a block's output to the residual stream and normalizes that, in one pass over memory: sum = hidden_states +
/// branch and normed = rms_norm(sum, weight, eps, kind), with the bits of the two calls. Returns both.
///
/// hidden_states and branch are (..., C), weight (C), all of one floating type. An undefined branch adds nothing: sum
/// is hidden_states then, and must not be written to. Backward adds the gradients that reach sum and normed in one
/// pass, too; the result is the gradient of hidden_states and of branch. Throws a usage error if shapes or types do not
/// match.
std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& hidden_states,
    const at::Tensor& branch,
    const at::Tensor& weight,
    double eps,
    NormWeight kind = NormWeight::plain);

}  // namespace lehr::ops
