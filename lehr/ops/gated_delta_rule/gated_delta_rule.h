// The gated delta rule: linear attention whose state forgets by a decay and is corrected towards each new value (Yang
// et al., Gated Delta Networks, https://arxiv.org/abs/2412.06464).
#pragma once

#include <vector>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// Inputs of the gated delta rule. B rows of T tokens, Hk key heads of size K, Hv value heads of size V; value head h
/// uses key head h / (Hv / Hk).
struct GatedDeltaInputs {
  at::Tensor query;  ///< (B, T, Hk, K), before its L2 norm.
  at::Tensor key;    ///< (B, T, Hk, K), before its L2 norm, of the query's type.
  at::Tensor value;  ///< (B, T, Hv, V), of the query's type.
  at::Tensor decay;  ///< (B, T, Hv) logarithm of the decay, at most 0; float32, or float64 if the query is float64.
  at::Tensor beta;   ///< (B, T, Hv) strength of the correction, from 0 to 1; of the decay's type.
  /// (B, Hv, K, V) of the decay's type: the state before the first token of each row; zero if undefined.
  at::Tensor initial_state = {};
  /// Cumulative lengths of the sequences of all rows (cumulative_lengths_of), int32 on the same device: the state is
  /// zero at the beginning of each except the first of a row. Undefined if each row is one sequence.
  at::Tensor cumulative_lengths = {};

  /// In the forward of an autograd function that calls the rule: saves these for backward, and `more` after them.
  /// Queries, keys and values that are recomputable are not kept (ops/recompute.h).
  void save(torch::autograd::AutogradContext* ctx, const std::vector<at::Tensor>& more = {}) const;
  /// In its backward: returns them, from the saved variables of the context.
  static GatedDeltaInputs saved(torch::autograd::AutogradContext* ctx, const std::vector<at::Tensor>& variables);
};

/// Results of the gated delta rule.
struct GatedDelta {
  at::Tensor output;       ///< (B, T, Hv, V), of the query's type.
  at::Tensor final_state;  ///< (B, Hv, K, V), of the decay's type: the state after the last token of each row.
};

/// Runs, for each token t of each value head, with q = query / |query| / sqrt(K) and k = key / |key| (a vector's norm
/// is the root of its sum of squares plus 1e-6):
///
///     S = exp(decay_t) S
///     S = S + k_t (beta_t (value_t - k_t S))^T
///     output_t = q_t S
///
/// On the CPU in chunks of 64 tokens: within a chunk, the corrections solve a triangular system (the WY
/// representation), so that everything else is matmuls, in float32 (float64 for float64). Time and memory are linear in
/// T. Backward saves the inputs and recomputes the states; it is not differentiable, and throws a usage error under
/// create_graph. On other devices plain ATen runs, token by token. Throws a usage error for other shapes and types.
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
