// The gated feed-forward block of Shazeer, "GLU variants improve transformer" (https://arxiv.org/abs/2002.05202).
#pragma once

#include "lehr/nn/linear.h"

namespace lehr::nn {

/// down_proj(silu(gate_proj(x)) * up_proj(x)), without biases.
class SwiGLUImpl : public Module {
 public:
  SwiGLUImpl(int64_t hidden_size, int64_t intermediate_size, Init init = Init::normal(0.02));

  /// Maps (..., hidden_size) to (..., hidden_size).
  at::Tensor forward(const at::Tensor& hidden_states);

  Linear gate_proj{nullptr};
  Linear up_proj{nullptr};
  Linear down_proj{nullptr};
};
LEHR_MODULE(SwiGLU);

}  // namespace lehr::nn
