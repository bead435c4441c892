// The residual stream of a decoder layer: blocks read it through a norm and add their outputs to it.
#pragma once

#include "lehr/nn/rms_norm.h"

namespace lehr::nn {

/// The hidden states (..., C) during the forward of a layer. A block's output is kept pending, so that it is added in
/// the same pass as the norm that follows (ops::add_rms_norm).
class ResidualStream {
 public:
  explicit ResidualStream(at::Tensor hidden_states) : hidden_states_(std::move(hidden_states)) {}

  /// Returns the norm of the hidden states, bitwise equal to `norm(hidden_states())`. A norm with hooks, or under a
  /// watch, is called as a module.
  at::Tensor normed(const RMSNorm& norm);

  /// Adds a block's output, with the shape and dtype of the hidden states.
  void add(at::Tensor output);

  /// Adds the norm of a block's output: hidden_states + norm(output), as in OLMo 2 (https://arxiv.org/abs/2501.00656).
  void add_normed(const at::Tensor& output, const RMSNorm& norm) { add(norm(output)); }

  /// Returns the hidden states including all outputs that were added.
  const at::Tensor& hidden_states();

 private:
  at::Tensor hidden_states_;
  at::Tensor waiting_;  // pending addition; undefined if there is none
};

}  // namespace lehr::nn
