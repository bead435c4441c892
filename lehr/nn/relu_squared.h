// The feed-forward block with squared ReLU (So et al., Primer, https://arxiv.org/abs/2109.08668).
#pragma once

#include "lehr/nn/linear.h"

namespace lehr::nn {

/// relu(x)^2
at::Tensor relu_squared(const at::Tensor& x);

/// down_proj(relu(up_proj(x))^2), without biases: the block of Nemotron.
class ReluSquaredMlpImpl : public Module {
 public:
  ReluSquaredMlpImpl(int64_t hidden_size, int64_t intermediate_size, Init init = Init::normal(0.02));

  /// Maps (..., hidden_size) to (..., hidden_size).
  at::Tensor forward(const at::Tensor& hidden_states);

  Linear up_proj{nullptr};
  Linear down_proj{nullptr};
};
LEHR_MODULE(ReluSquaredMlp);

}  // namespace lehr::nn
