// Cosine distance of hidden states.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns 1 - cos(x, target) per row, (N), float32 (float64 for float64 x); 1 for a row that is zero. x and target are
/// (N, H). Differentiable in x only; saves x and target for backward, and no other tensor of their size. A row that is
/// zero has no gradient.
at::Tensor cosine_distance(const at::Tensor& x, const at::Tensor& target);

namespace reference {
at::Tensor cosine_distance(const at::Tensor& x, const at::Tensor& target);
}  // namespace reference

}  // namespace lehr::ops
