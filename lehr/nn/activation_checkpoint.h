// Activation checkpointing: save only a block's input in forward, and recompute the block in backward (Chen et al.,
// https://arxiv.org/abs/1604.06174).
#pragma once

#include <concepts>
#include <functional>
#include <vector>

#include "lehr/base/torch.h"

namespace lehr::nn {

/// The parts of a model that are recomputed in backward. Converts from bool, so that `enable_checkpointing = true`
/// means all layers.
struct ActivationCheckpointing {
  int64_t every = 0;  ///< Every n-th layer (0, n, 2n, ...); 0 means none.
  bool matmuls_only =
      false;  ///< In those layers, recompute only the matmul outputs that backward reads (RecomputeMatmuls).
  /// In all layers, save this rank's part of sequences that are all-gathered, and gather them again in backward
  /// (shard/sequence_gather.h).
  bool regather = false;

  constexpr ActivationCheckpointing() = default;
  template <std::same_as<bool> Bool>                                         // not from an int: 2 would mean every
                                                                             // layer
  constexpr ActivationCheckpointing(Bool enable) : every(enable ? 1 : 0) {}  // NOLINT(google-explicit-constructor)
  static constexpr ActivationCheckpointing every_nth(int64_t n) {
    ActivationCheckpointing policy;
    policy.every = n;
    return policy;
  }
  static constexpr ActivationCheckpointing matmuls_of_every_nth(int64_t n) {
    ActivationCheckpointing policy = every_nth(n);
    policy.matmuls_only = true;
    return policy;
  }
  constexpr bool applies_to(int64_t layer) const { return every > 0 && layer % every == 0; }
  /// Cost of a layer's training step relative to a step without checkpointing: forward is a third of it, and the
  /// recomputed matmuls are about two thirds of forward.
  constexpr double cost(int64_t layer) const { return !applies_to(layer) ? 1.0 : matmuls_only ? 11.0 / 9 : 4.0 / 3; }
};

/// A part of a model with several inputs and outputs, all of which are defined.
using TensorsBlock = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Runs `block(inputs)`, the layer with index `layer`, and saves the activations that `policy` allows.
std::vector<at::Tensor> run_layer(
    ActivationCheckpointing policy, int64_t layer, const TensorsBlock& block, const std::vector<at::Tensor>& inputs);

/// The same with one input and one output.
at::Tensor run_layer(
    ActivationCheckpointing policy,
    int64_t layer,
    const std::function<at::Tensor(const at::Tensor&)>& block,
    const at::Tensor& input);

/// Runs `block(inputs)` and saves only `inputs`; backward runs the block again and differentiates that run. Gradients
/// reach the inputs and every parameter that the block reads, whether or not an input requires one. The block must
/// compute the same result both times. Without grad mode it only runs the block.
///
/// With deferred wgrad (ops/weight_gradients.h), the block is recomputed once, in the dgrad pass.
///
/// Gradients of parameters are accumulated into their .grad during backward, so use `Tensor::backward`, not
/// `torch::autograd::grad` for selected parameters.
std::vector<at::Tensor> checkpoint(const TensorsBlock& block, const std::vector<at::Tensor>& inputs);
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& input);

/// True while run_layer() runs a block on this thread under a policy with ActivationCheckpointing::regather.
bool regathers();

/// True while this thread recomputes a block for its backward: statistics must not be counted twice.
bool is_recomputing();

}  // namespace lehr::nn
