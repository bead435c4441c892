// Selection of the linear layers and experts that compute in float8.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/ops/linear_float8/linear_float8.h"

namespace lehr::nn {

/// The linear layers of a model by their full names, grouped by whether they can compute in float8.
struct Float8Layers {
  std::vector<std::string> fit;          ///< Can compute in float8.
  std::vector<std::string> other_sizes;  ///< A dimension of the weight is not a multiple of 16, which GPUs require.
  /// Excluded: layers of heads, whose weights the loss reads, and router gates, whose selection is sensitive to small
  /// errors.
  std::vector<std::string> kept;

  size_t size() const { return fit.size() + other_sizes.size() + kept.size(); }
};

/// Decides by the global shapes of weights. The projections of experts (GroupedLinear) are not included.
Float8Layers float8_layers(const torch::nn::Module& model);

/// Makes the fitting layers compute in float8 from now on, except those that `excludes` names. Returns their number.
int64_t use_float8(
    torch::nn::Module& model,
    ops::Float8Recipe recipe,
    const std::function<bool(const std::string& name)>& excludes = {});

/// Number of linear layers of a model that currently compute in float8.
int64_t count_float8(const torch::nn::Module& model);

/// The same for the projections of experts (GroupedLinear), such as "model.layers.0.mlp.grouped_experts.gate_proj".
/// Each holds the weights of all experts of its layer. None is `kept`.
Float8Layers float8_experts(const torch::nn::Module& model);

/// Makes the fitting projections of experts that `includes` names compute in float8 from now on. Returns their number.
int64_t use_float8_experts(
    torch::nn::Module& model, ops::Float8Recipe recipe, const std::function<bool(const std::string& name)>& includes);

/// Number of projections of experts that currently compute in float8.
int64_t count_float8_experts(const torch::nn::Module& model);

}  // namespace lehr::nn
