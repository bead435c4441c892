// Losses of logits that are computed in chunks of tokens and never stored: the loop, and the backward pass.
#pragma once

#include <functional>

#include "lehr/base/torch.h"
#include "lehr/ops/cpu.h"

namespace lehr::ops {

/// The logits of tokens [first, first + n) among those that count.
struct LogitsChunk {
  int64_t first = 0;
  at::Tensor logits;  ///< (n, V). If `gradient`, the loss overwrites them by its gradient with respect to them.
  bool gradient = false;
  at::Tensor row_scale;  ///< (n), factors on the gradients of the tokens; undefined: 1.

  /// This chunk's part of a tensor over all tokens that count.
  at::Tensor part_of(const at::Tensor& rows) const { return rows.narrow(0, first, logits.size(0)); }
};

/// Computes the losses of a chunk, and stores them; over_chunks does not use them.
using ChunkLoss = std::function<void(const LogitsChunk& chunk)>;

/// Gradients of the linear layer that computes the logits; undefined if not wanted.
struct HeadGradients {
  at::Tensor hidden;  ///< (n, H)
  at::Tensor weight;  ///< (V, H)
};

/// Calls `loss` for the logits hidden weight^T of `chunk` tokens at a time. Returns the wanted gradients for an
/// incoming gradient of row_scale, or of 1.
HeadGradients over_chunks(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    int64_t chunk,
    cpu::GradMask wanted,
    const ChunkLoss& loss,
    const at::Tensor& row_scale = {});

/// @name Backward of a function whose first two inputs are hidden and weight
/// @{
/// Saves the gradients for an incoming gradient of 1, in forward.
void save_unit_gradients(torch::autograd::AutogradContext* ctx, const HeadGradients& unit);

/// Returns the gradients for the incoming gradient (N) of all tokens, of which those at `index` count (undefined: all).
/// Scales the saved ones if all tokens that count have the same incoming gradient. Else, and in a second backward pass
/// (retain_graph), calls `recompute(missing, row_scale)` for the missing ones.
HeadGradients scaled_unit_gradients(
    torch::autograd::AutogradContext* ctx,
    const at::Tensor& grad,
    const at::Tensor& index,
    const std::function<HeadGradients(cpu::GradMask missing, const at::Tensor& row_scale)>& recompute);
/// @}

}  // namespace lehr::ops
