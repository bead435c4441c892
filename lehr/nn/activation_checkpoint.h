// Activation checkpointing: keep a block's inputs instead of what it computed, and compute again in backward
// (Chen et al., https://arxiv.org/abs/1604.06174).
#pragma once

#include <concepts>
#include <functional>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// What a model computes again in backward. Converts from bool, so that `enable_checkpointing = true` means all layers.
struct ActivationCheckpointing {
  int64_t every = 0;      ///< Every n-th layer (0, n, 2n, ...); 0 means none.
  bool products = false;  ///< Of those layers not all, but the products whose results backward reads (RemakeProducts).

  constexpr ActivationCheckpointing() = default;
  template <std::same_as<bool> Bool>                                         // not from 2, which would mean every layer
  constexpr ActivationCheckpointing(Bool enable) : every(enable ? 1 : 0) {}  // NOLINT(google-explicit-constructor)
  static constexpr ActivationCheckpointing every_nth(int64_t n) {
    ActivationCheckpointing policy;
    policy.every = n;
    return policy;
  }
  static constexpr ActivationCheckpointing products_of_every_nth(int64_t n) {
    ActivationCheckpointing policy = every_nth(n);
    policy.products = true;
    return policy;
  }
  constexpr bool applies_to(int64_t layer) const { return every > 0 && layer % every == 0; }
  /// Operations of a layer's training step, over those without any of it: forward is a third of them, and the products
  /// that are made again are about two thirds of forward.
  constexpr double cost(int64_t layer) const { return !applies_to(layer) ? 1.0 : products ? 11.0 / 9 : 4.0 / 3; }
};

/// Runs `block(input)`, the layer of that number, and keeps for backward what `policy` says.
at::Tensor run_layer(
    ActivationCheckpointing policy,
    int64_t layer,
    const std::function<at::Tensor(const at::Tensor&)>& block,
    const at::Tensor& input);

/// Runs `block(input)` and keeps only `input`; backward runs the block once more and differentiates that. Gradients
/// reach `input` and every parameter that the block reads, whether or not `input` itself needs one. The block must
/// compute the same thing both times. Without grad mode it just runs.
///
/// If the weights' gradients wait (ops/weight_gradients.h), the block runs again in the input half and not once more.
///
/// Gradients of parameters are added to their .grad during backward, so use `Tensor::backward`, not
/// `torch::autograd::grad` for chosen parameters.
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& input);

/// Whether this thread runs a block once more for its backward: statistics must not be counted twice.
bool is_recomputing();

}  // namespace lehr::nn
