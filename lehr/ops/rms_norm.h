// Root-mean-square normalization of rows, with a learned weight.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// y = x / sqrt(mean(x^2) + eps) * weight over the last dimension.
///
/// x is (..., C), weight (C), both of one floating type; y has x's shape and type. Statistics are float32 (float64 for
/// float64). As in Hugging Face's Qwen3RMSNorm, the normalized value is rounded to the type of x before the weight
/// multiplies it. Gradients flow to x and weight; the weight's is the same for any number of threads. Throws a usage
/// error if shapes or types do not match.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace lehr::ops
