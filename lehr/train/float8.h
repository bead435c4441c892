// The section [float8] applied to a run: which layers compute in float8, and where that can be had.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/model.h"
#include "lehr/train/config.h"

namespace lehr::train {

/// Lets the layers of a model, or of a stage of one, compute as config says. Nothing happens unless it is enabled.
void use_float8(const Float8Config& config, nn::Model& model);

/// Judges what use_float8 did, by the whole model or all of its stages. Throws a usage error: for a pattern of
/// config.exclude that matches the whole name of no linear layer, and where no layer is left.
void check_float8(const Float8Config& config, const std::vector<std::shared_ptr<nn::Model>>& stages);

/// What keeps float8 from training on such a mesh, with what to do; empty if nothing does.
std::string float8_problem(const Float8Config& config, const mesh::DeviceMeshParameters& mesh);

/// For the report at the start: "28 of 29 linear layers, rowwise; ...".
std::string describe_float8(const Float8Config& config, const nn::Model& model, at::Device device);

}  // namespace lehr::train
