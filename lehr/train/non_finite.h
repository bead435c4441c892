// The first tensor of a step that is not finite, for the error message.
#pragma once

#include <string>
#include <vector>

#include "lehr/nn/module.h"
#include "lehr/train/ranks.h"

namespace lehr::train {

/// Returns the name of the first trainable parameter on this rank that has an element that is infinite or not a number;
/// empty if there is none. The host waits for each.
std::string non_finite_parameter(const nn::Module& model);

/// Returns a sentence that names the tensor that is not finite after forward and backward of a step: the first
/// parameter, in the order of the model; else the gradient that backward computed first, which is the last in that
/// order; empty if all
/// are finite. Names the rank and its place in the mesh: "... on rank 2 (dp_shard 1, tp 0)". Gradients that are not
/// defined are left out. All ranks must call it, and get the same text.
std::string describe_non_finite(const std::vector<nn::NamedParameter>& parameters, const Ranks& ranks);

}  // namespace lehr::train
