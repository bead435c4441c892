// Sub-block checkpoints: a file for each group of weights of the descriptor, and an ordinary index.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/descriptor/model_descriptor.h"
#include "lehr/state/file_plan.h"

namespace lehr::train {

/// The folder of the files in a model folder, as in puzzletron's checkpoints.
inline constexpr const char* kSubblocksFolder = "subblocks_safetensors";

/// The group of each of these tensors, which are named as checkpoints of the shape name them. Throws a usage error that
/// names the first that belongs to no group.
descriptor::WeightGroups subblock_groups(
    const descriptor::ModelArgs& args,
    const descriptor::ModelDescriptor& descriptor,
    const std::vector<std::string>& names);

/// Plans subblocks_safetensors/GROUP.safetensors for every group of weights that `tensors` has, in the order of their
/// first tensors, and model.safetensors.index.json. Throws as subblock_groups.
state::FilePlan plan_subblock_files(
    const descriptor::ModelArgs& args,
    const descriptor::ModelDescriptor& descriptor,
    const std::vector<state::TensorInfo>& tensors);

}  // namespace lehr::train
