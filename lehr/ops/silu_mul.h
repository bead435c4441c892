// The gate of SwiGLU.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// silu(gate) * up, elementwise, silu(x) = x / (1 + exp(-x)).
///
/// Both have one shape and floating type. The arithmetic is float32 (float64 for float64) with one rounding at the end.
/// Throws a usage error if shapes or types differ.
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);

}  // namespace lehr::ops
