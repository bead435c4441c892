// The inputs and results of the gated delta rule.
#pragma once

#include <vector>

#include "lehr/base/torch.h"

namespace lehr::ops {

/// The update of the state by a token.
enum class StateUpdate {
  correct,  ///< The gated delta rule: corrects it towards the token's value.
  add,      ///< The state-space dual of Mamba-2 (Dao and Gu, https://arxiv.org/abs/2405.21060): adds to it.
};

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
  StateUpdate update = StateUpdate::correct;

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

}  // namespace lehr::ops
