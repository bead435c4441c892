// Sub-block checkpoints: one file per weight group of the descriptor, and a standard index.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/descriptor/model_descriptor.h"
#include "lehr/state/file_plan.h"

namespace lehr::pretrained {

/// The folder of the files within a model folder, as in puzzletron's checkpoints.
inline constexpr const char* kSubblocksFolder = "subblocks_safetensors";

/// Groups tensors, which have the names of a checkpoint of this shape. Throws a usage error that names the first tensor
/// that belongs to no group.
descriptor::WeightGroups subblock_groups(
    const descriptor::ModelArgs& args,
    const descriptor::ModelDescriptor& descriptor,
    const std::vector<std::string>& names);

/// Plans subblocks_safetensors/GROUP.safetensors for every weight group of `tensors`, in the order of their first
/// tensors, and model.safetensors.index.json. Throws the errors of subblock_groups.
state::FilePlan plan_subblock_files(
    const descriptor::ModelArgs& args,
    const descriptor::ModelDescriptor& descriptor,
    const std::vector<state::TensorInfo>& tensors);

}  // namespace lehr::pretrained
