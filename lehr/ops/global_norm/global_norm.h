// Global norm and scaling of a list of tensors, for gradient clipping.
#pragma once

#include <vector>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Returns the sum of squares of all elements of all tensors, as a float64 scalar on the device of the first defined
/// tensor (CPU if there is none).
///
/// One pass, summed in float64 in an order that depends on the shapes only. Undefined tensors count as empty. NaN and
/// infinity propagate.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors);

/// Returns the Euclidean norm: the root of sum_of_squares.
at::Tensor global_norm(const std::vector<at::Tensor>& tensors);

/// Multiplies every element in place by a factor of one element. Undefined tensors are skipped; a factor of 1 does
/// nothing. If the factor is on a GPU, the host does not wait for it.
void scale_(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

}  // namespace lehr::ops
