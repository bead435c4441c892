// Application of the [float8] section to a run: the layers and experts that compute in float8.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lehr/nn/model.h"
#include "lehr/train/config.h"

namespace lehr::train {

/// Makes the layers of a model, or of a stage of one, compute as the config requests. Does nothing unless it is
/// enabled.
void use_float8(const Float8Config& config, nn::Model& model);

/// Checks the result of use_float8 for the whole model or all of its stages. Throws a usage error for a pattern of
/// config.exclude or config.moe_fqns that matches the whole name of no linear layer or projection of experts, and if no
/// layer computes in float8, or no experts do though the config requests it.
void check_float8(const Float8Config& config, const std::vector<std::shared_ptr<nn::Model>>& stages);

/// A summary for the start-up report: "28 of 29 linear layers, rowwise; ...".
std::string describe_float8(const Float8Config& config, const nn::Model& model, at::Device device);

}  // namespace lehr::train
