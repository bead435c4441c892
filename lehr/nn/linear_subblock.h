// One linear layer in place of a sub-block of a decoder layer.
#pragma once

#include "lehr/nn/linear.h"

namespace lehr::nn {

/// y = W x with W (hidden_size, hidden_size), for each token separately, in place of an attention or a feed-forward
/// block (Puzzle, https://arxiv.org/abs/2411.19146). The linear layer is the child `name`: "linear_attn" or
/// "linear_mlp", as in Nemotron-NAS models.
class LinearSubblockImpl : public Module {
 public:
  LinearSubblockImpl(const std::string& name, int64_t hidden_size, Init init)
      : linear_(register_module(name, Linear(hidden_size, hidden_size, init))) {}

  /// Maps (..., hidden_size) to (..., hidden_size).
  at::Tensor forward(const at::Tensor& hidden_states) { return linear_(hidden_states); }

 private:
  Linear linear_;
};
LEHR_MODULE(LinearSubblock);

}  // namespace lehr::nn
