// SwiGLU's gate (https://arxiv.org/abs/2002.05202).
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns silu(gate) * up, elementwise, with silu(x) = x / (1 + exp(-x)).
///
/// Both have one shape and floating type. Arithmetic is float32 (float64 for float64) with one rounding at the end.
/// Throws a usage error if shapes or types differ.
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);

namespace reference {
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);
}

}  // namespace lehr::ops
