// Divergence of a student's predictions from its teacher's.
#pragma once

#include <cstdint>

#include "lehr/base/torch.h"
#include "lehr/nn/model.h"

namespace lehr::search {

/// Sums over tokens.
struct DivergenceSums {
  int64_t tokens = 0;
  double kl = 0;         ///< KL(teacher || student) of the next token's distribution, in nats.
  double nll = 0;        ///< Of the label, in nats.
  double agreement = 0;  ///< 1 where both have the same most likely token.
  double cosine = 0;     ///< 1 - cosine of the hidden states after the final norm.
  double mse = 0;        ///< |student - teacher|^2 / |teacher|^2 of these hidden states.

  DivergenceSums& operator+=(const DivergenceSums& other);
  bool operator==(const DivergenceSums&) const = default;
};

/// The output of a model: its hidden states (B, T, H) after the final norm, and the model with the head for them.
struct Prediction {
  nn::Model& head;
  at::Tensor hidden_states;
};

/// Compares two models on the tokens whose label (B, T) is not nn::kIgnoreIndex. Logits are computed for a chunk of
/// tokens at a time: about 64 MiB of each model's, and some copies. Sums are in float64. The models have one
/// vocabulary; with different hidden sizes, cosine and mse are 0.
DivergenceSums divergence(const Prediction& teacher, const Prediction& student, const at::Tensor& labels);

}  // namespace lehr::search
