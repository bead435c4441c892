// The gated delta rule: linear attention whose state forgets by a decay and is corrected towards each new value (Yang
// et al., Gated Delta Networks, https://arxiv.org/abs/2412.06464).
#pragma once

#include <vector>

#include "lehr/base/torch.h"
#include "lehr/ops/gated_delta_rule/inputs.h"

namespace lehr::ops {

/// Runs, for each token t of each value head, with q = query / |query| / sqrt(K) and k = key / |key| (a vector's norm
/// is the root of its sum of squares plus 1e-6):
///
///     S = exp(decay_t) S
///     S = S + k_t (beta_t (value_t - k_t S))^T
///     output_t = q_t S
///
/// With StateUpdate::add, for q = query and k = key as they are (C, B, x, A dt and dt of Mamba-2 are query, key, value,
/// decay and beta; its groups are the key heads):
///
///     S = exp(decay_t) S + k_t (beta_t value_t)^T
///     output_t = q_t S
///
/// Runs in the chunkwise parallel form (Yang et al., https://arxiv.org/abs/2406.06484), in chunks of 64 tokens: within
/// a chunk, the corrections solve a triangular system (the WY representation; there is none with StateUpdate::add), and
/// everything else is matmuls, in float32 (float64 for float64). Time and memory are linear in T. Backward saves the
/// inputs and recomputes the states; it is not differentiable, and throws a usage error under create_graph. Where there
/// are no kernels (on a GPU: float64, few tokens, K > 128 with corrections) plain ATen runs, token by token. Throws a
/// usage error for other shapes and types.
GatedDelta gated_delta_rule(const GatedDeltaInputs& inputs);

/// Returns the final state alone, without a graph, for about half the work.
at::Tensor gated_delta_final_state(const GatedDeltaInputs& inputs);

/// Backward, for autograd functions that call the rule: returns the gradients of the fields of `inputs`, in order, up
/// to initial_state, whose gradient is undefined if it is. `dfinal_state` may be undefined: zero.
std::vector<at::Tensor> gated_delta_rule_backward(
    const GatedDeltaInputs& inputs, const at::Tensor& doutput, const at::Tensor& dfinal_state);

namespace reference {
/// The recurrence above, in the type of `decay`. Autograd differentiates it.
GatedDelta gated_delta_rule(const GatedDeltaInputs& inputs);
}  // namespace reference

}  // namespace lehr::ops
