// gpt-oss's gate: a SwiGLU whose two inputs are clamped (https://arxiv.org/abs/2508.10925).
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The constants of the gate, with the names of Hugging Face's config.json (swiglu_limit, swiglu_alpha).
struct SwiGLUClamp {
  double limit = 7;      ///< The gate is at most this, and the linear half between -limit and limit.
  double alpha = 1.702;  ///< In g sigmoid(alpha g), which is close to GELU with 1.702.
};

/// Returns (u + 1) g sigmoid(alpha g), (..., F), with g the even and u the odd elements of gate_up (..., 2F), clamped.
///
/// Arithmetic is float32 (float64 for float64) with one rounding at the end. As in torch.clamp, the gradient of an
/// element beyond the limit is zero, and that of one at the limit is not. Throws a usage error if gate_up is not of a
/// floating type, or the last dimension is odd.
at::Tensor clamped_swiglu(const at::Tensor& gate_up, const SwiGLUClamp& clamp);

namespace reference {
at::Tensor clamped_swiglu(const at::Tensor& gate_up, const SwiGLUClamp& clamp);
}

}  // namespace lehr::ops
