// The joint norm of many tensors, and their joint scaling: the two halves of gradient clipping.
#pragma once

#include <vector>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The sum of the squares of all elements of all tensors, as a float64 scalar on the device of the first (CPU for
/// none).
///
/// One pass, summed in float64 in an order that depends on the shapes alone. Undefined tensors count as empty. NaN and
/// infinity come out as such.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors);

/// Its root: the Euclidean norm.
at::Tensor global_norm(const std::vector<at::Tensor>& tensors);

/// Multiplies every element in place. Undefined tensors are skipped; a factor of 1 touches nothing.
void scale_(const std::vector<at::Tensor>& tensors, double factor);
/// The same by a factor of one element; the host does not wait for one that lies on a GPU.
void scale_(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

}  // namespace lehr::ops
