// Matrix products by whichever library is fast on the CPU at hand.
#pragma once

#include "lehr/base/torch.h"

namespace lehr::ops {

/// a b for matrices a (m, k) and b (k, n) of one type, either of which may be a transposed view; not differentiable.
///
/// ATen sends float32 products to MKL, which on CPUs not made by Intel keeps to 256-bit vectors and there runs at half
/// the speed of oneDNN or less; this one sends them to oneDNN then. Everything else is at::mm.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// sum += a b, in place, under the same rules.
void add_product_(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace lehr::ops
