// How far a student's predictions are from its teacher's.
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

/// Compares the hidden states (B, T, H) of two models after the final norm, on the tokens whose label (B, T) is not
/// nn::kIgnoreIndex. Logits are those of `head`, computed for a chunk of tokens at a time: at most 64 MiB of each
/// model's. Sums are in float64.
DivergenceSums divergence(
    nn::Model& head, const at::Tensor& teacher, const at::Tensor& student, const at::Tensor& labels);

}  // namespace lehr::search
