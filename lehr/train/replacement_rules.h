// What a half of a layer must be to take the place of another one.
#pragma once

#include <string>

#include "lehr/descriptor/model_args.h"
#include "lehr/train/replacements.h"

namespace lehr::train {

/// All throw usage errors that begin with what asks for the replacement.
/// @{

/// The model that a half comes from must be of the family of the one that it goes into, and like it in all that changes
/// what a sub-block computes from the same weights.
void require_same_computation(
    const Replacement& replacement, const descriptor::ModelArgs& other, const descriptor::ModelArgs& own);

/// `folder` holds a model of `count` layers, of which `layer` must be one.
void require_layer(const Replacement& replacement, int64_t layer, size_t count, const std::string& folder);

/// What Replacement::block_config says of the half, if it is there, must be what the half is in `there`, the layer that
/// it comes from. `form` is that of the model that it goes into.
void require_as_said(
    const Replacement& replacement, const descriptor::BlockConfig& there, const descriptor::DecoderForm& form);

/// @}

}  // namespace lehr::train
