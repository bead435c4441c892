// QK-norm and rotary embedding in one pass over queries and keys.
#pragma once

#include <tuple>

#include "lehr/base/torch.h"
#include "lehr/ops/rms_norm/rms_norm.h"
#include "lehr/ops/rotary/rotary.h"

namespace lehr::ops {

/// Returns apply_rotary(rms_norm(q, q_weight, eps, kind), rms_norm(k, k_weight, eps, kind), cos, sin, style).
///
/// Shapes and types are as in rms_norm (over the head's D elements; weights are (D)) and apply_rotary. The fused form
/// keeps float32 between the two, so in bfloat16 it rounds once where the composition rounds three times. In float32
/// and float64 they agree to rounding.
std::tuple<at::Tensor, at::Tensor> qk_norm_rotary(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& q_weight,
    const at::Tensor& k_weight,
    double eps,
    const at::Tensor& cos,
    const at::Tensor& sin,
    RotaryStyle style = RotaryStyle::half,
    NormWeight kind = NormWeight::plain);

}  // namespace lehr::ops
