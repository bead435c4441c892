// Rules that a sub-block must satisfy to replace another one.
#pragma once

#include <string>

#include "lehr/descriptor/model_args.h"
#include "lehr/pretrained/replacements.h"

namespace lehr::pretrained {

/// @name Rules. All functions throw usage errors that begin with the origin of the request (Replacement::where)
/// @{
/// Requires that the source model is of the same family as the target, and equal to it in all settings that change a
/// sub-block's computation with the same weights.
void require_same_computation(
    const Replacement& replacement, const descriptor::ModelArgs& other, const descriptor::ModelArgs& own);

/// Requires that `layer` is one of the `count` layers of the model in `folder`.
void require_layer(const Replacement& replacement, int64_t layer, size_t count, const std::string& folder);

/// Requires that an attention comes from a layer with the window and the rotary positions of the one that it replaces.
/// Both layers exist.
void require_same_kind_of_layer(
    const Replacement& replacement, const descriptor::ModelArgs& other, const descriptor::ModelArgs& own);

/// Requires that the sub-block in `there`, the source layer, matches Replacement::block_config, if that is set. `form`
/// is that of the target model.
void require_stated_block(
    const Replacement& replacement, const descriptor::BlockConfig& there, const descriptor::DecoderForm& form);

/// @}

}  // namespace lehr::pretrained
