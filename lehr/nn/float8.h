// Which linear layers of a model compute in float8.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/ops/linear_float8.h"

namespace lehr::nn {

/// The linear layers below a model by their full names, sorted into who can compute in float8 and who cannot.
struct Float8Layers {
  std::vector<std::string> fit;          ///< All others.
  std::vector<std::string> other_sizes;  ///< A size of the weight is no multiple of 16, as a GPU needs it.
  /// Layers of heads, whose weights the loss reads, and gates of routers, whose choices small errors change.
  std::vector<std::string> kept;

  size_t size() const { return fit.size() + other_sizes.size() + kept.size(); }
};

/// Judges by the sizes of whole weights. Groups of experts (GroupedLinear) are no linear layers: they are not in it,
/// and always compute in the type of their inputs.
Float8Layers float8_layers(const torch::nn::Module& model);

/// Lets the layers that fit compute in float8 from now on, but for those that `excludes` names. Returns how many do.
int64_t use_float8(
    torch::nn::Module& model,
    ops::Float8Recipe recipe,
    const std::function<bool(const std::string& name)>& excludes = {});

/// How many linear layers below a model compute in float8 now.
int64_t count_float8(const torch::nn::Module& model);

}  // namespace lehr::nn
