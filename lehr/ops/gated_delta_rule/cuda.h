// The gated delta rule on a GPU, in chunks like on the CPU.
#pragma once

#include <vector>

#include "lehr/ops/gated_delta_rule/inputs.h"

namespace lehr::ops::cuda {

/// Returns whether there are kernels for these inputs: float32 or bfloat16 on a GPU, kFewestDeltaTokens or more, and
/// keys of at most kMostDeltaSize (of any size with StateUpdate::add).
bool supports_gated_delta(const GatedDeltaInputs& in);

/// A step of generation has fewer tokens: then the definition, token by token, has fewer launches and no padding.
constexpr int64_t kFewestDeltaTokens = 4;

/// Temporary tensors of one pass over some rows and key heads. These are independent, so a larger call takes several
/// passes.
constexpr double kDeltaTemporaryBytes = 2e9;

/// The operator for contiguous inputs; without `with_output` its final state alone.
GatedDelta gated_delta_rule(
    const GatedDeltaInputs& in, bool with_output, double temporary_bytes = kDeltaTemporaryBytes);

/// Its gradients, in the order of the fields of the inputs. `dfinal_state` may be undefined: zero.
std::vector<at::Tensor> gated_delta_rule_backward(
    const GatedDeltaInputs& in,
    const at::Tensor& doutput,
    const at::Tensor& dfinal_state,
    double temporary_bytes = kDeltaTemporaryBytes);

}  // namespace lehr::ops::cuda
