// The rows of lehr verify that need no gradients: hidden states, logits, losses and tokens, of whole or sharded models.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/nn/model.h"
#include "lehr/train/ranks.h"
#include "lehr/verify/comparison.h"

namespace lehr::verify {

/// Returns the mean loss, with its graph, of a batch of the reference: input_ids (B, T), labels (B, T), or (B) of a
/// classifier, which also needs `mask` (B, T). The tensors are on the host; labels are not shifted.
at::Tensor reference_loss(
    nn::Model& model,
    const descriptor::ModelArgs& args,
    const train::Ranks& ranks,
    at::Device device,
    const at::Tensor& input_ids,
    const at::Tensor& labels,
    const at::Tensor& mask);

/// Compares the outputs of `model`, which is in eval mode and whole, or loaded on `ranks` (load_on_ranks.h): then all
/// ranks must call, and all compare the same tensors. A model of several pipeline stages has no hidden states and no
/// decisions of routers to compare.
void compare_outputs(
    Comparison& comparison, nn::Model& model, const descriptor::ModelArgs& args, const train::Ranks& ranks);

}  // namespace lehr::verify
