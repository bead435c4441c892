// The MoE layer that the fields of config.json describe.
#pragma once

#include "lehr/model/layer_sizes.h"
#include "lehr/model/moe_config.h"
#include "lehr/nn/moe.h"

namespace lehr::model {

/// Returns the MoE layer of a decoder layer with these sizes. If the config has a width for a shared expert, there is
/// one, whose output is not scaled: a family with a gate sets it.
nn::MoEParameters moe_parameters(const MoEConfig& moe, const LayerSizes& sizes);

}  // namespace lehr::model
