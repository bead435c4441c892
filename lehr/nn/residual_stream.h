// The residual stream of a decoder layer, which blocks read through a norm and add to.
#pragma once

#include "lehr/nn/rms_norm.h"

namespace lehr::nn {

/// Hidden states (..., C) during the forward of a layer. What a block gives waits, so that it is added in the pass of
/// the norm that follows (ops::add_rms_norm).
class ResidualStream {
 public:
  explicit ResidualStream(at::Tensor hidden_states) : hidden_states_(std::move(hidden_states)) {}

  /// The norm of the hidden states, with the bits of `norm(hidden_states())`. A norm that has hooks, or is watched, is
  /// called as a module.
  at::Tensor normed(const RMSNorm& norm);

  /// Adds a block's output, of the shape and type of the hidden states.
  void add(at::Tensor output);

  /// The hidden states, with everything that was added.
  const at::Tensor& hidden_states();

 private:
  at::Tensor hidden_states_;
  at::Tensor waiting_;  // to be added; undefined for nothing
};

}  // namespace lehr::nn
