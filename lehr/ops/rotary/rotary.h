// Rotary position embedding of queries and keys (RoPE, https://arxiv.org/abs/2104.09864), alone or fused with QK-norm.
#pragma once

#include <tuple>

#include "lehr/base/torch.h"
#include "lehr/ops/rms_norm/rms_norm.h"

namespace lehr::ops {

/// Pairing of a head's elements: the two of a pair are rotated together.
enum class RotaryStyle {
  half,         ///< (i, i + R/2), as in Llama, Qwen and Hugging Face's rotate_half.
  interleaved,  ///< (2i, 2i + 1), as in GPT-J and Meta's original Llama code.
};

/// Rotates the first R elements of every head; the other D - R pass through.
///
/// q is (B, T, Hq, D) and k (B, T, Hkv, D). k may be undefined; the second result is then undefined too. cos and sin
/// are (B, T, R), (1, T, R) or (T, R) with R even and at most D. Pair i is rotated by the angle at index i. The half
/// style also reads the angle's copy at i + R/2; the interleaved style does not. Arithmetic is float32 (float64 for
/// float64) with one rounding at the end, whatever the type of cos and sin, which get no gradient. Throws a usage error
/// if shapes or types do not match.
std::tuple<at::Tensor, at::Tensor> apply_rotary(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& cos,
    const at::Tensor& sin,
    RotaryStyle style = RotaryStyle::half);

/// Returns apply_rotary(rms_norm(q, q_weight, eps, kind), rms_norm(k, k_weight, eps, kind), cos, sin, style).
///
/// Shapes and types are as in rms_norm (over the head's D elements; weights are (D)) and apply_rotary. k_weight may be
/// undefined if k is. The fused form keeps float32 between the two, so in bfloat16 it rounds once where the composition
/// rounds three times. In float32 and float64 they agree to rounding.
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

namespace reference {
std::tuple<at::Tensor, at::Tensor> apply_rotary(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos, const at::Tensor& sin, RotaryStyle style);
}  // namespace reference

}  // namespace lehr::ops
